package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"overmind-fs/schema"
)

func cmdShow() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "show what an entry holds and which inputs it depends on",
		ArgsUsage: "ID",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print manifest.json"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usageError{fmt.Sprintf("show needs one id, or the start of one, got %d arguments", c.NArg())}
			}
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			id, err := findEntry(root, c.Args().First())
			if err != nil {
				return err
			}
			e, err := readEntry(root, id)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return showJSON(e)
			}
			return show(os.Stdout, e)
		},
	}
}

func showJSON(e *entry) error {
	m := e.manifest
	files := schema.Files{ID: e.id, Arenas: map[string]uint64{}, StructureNbytes: m.StructureNbytes}
	for _, a := range m.Arenas {
		files.Arenas[a.Name] = a.Nbytes
	}
	if err := m.Validate(files); err != nil { // JSON follows the indices; a plain folder is not checked by anybody
		return err
	}
	text, err := m.JSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

func show(w io.Writer, e *entry) error {
	m := e.manifest
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { _, _ = fmt.Fprintf(t, "%s\t%v\n", name, value) }
	line("id", e.id)
	line("class", m.ClassName)
	line("model", m.ModelName)
	line("loader", m.Loader)
	line("scope", m.Scope)
	line("owner", fmt.Sprintf("uid %d", e.uid))
	created := time.Unix(0, m.CreatedNS)
	line("created", fmt.Sprintf("%s (%s)", created.Format(time.RFC3339), humanize.Time(created)))
	line("load took", fmt.Sprintf("%.1f s", m.FillSeconds))
	line("size", humanize.IBytes(e.bytes))
	line("structure", humanize.IBytes(m.StructureNbytes))
	line("storages", len(m.Storages))
	line("tensors", len(m.Tensors))
	if e.live {
		line("hits", e.hits)
		line("leases", e.leases)
		if e.leasePIDs != "" {
			line("leased by pid", e.leasePIDs)
		}
		line("pinned", e.pinned)
		line("last use", humanize.Time(e.lastUse))
	}
	section := func(name string, n int, each func(i int) (string, string)) {
		if n == 0 {
			return
		}
		_, _ = fmt.Fprintf(t, "\n%s\n", name)
		for i := range n {
			a, b := each(i)
			_, _ = fmt.Fprintf(t, "  %s\t%s\n", a, b)
		}
	}
	section("arenas", len(m.Arenas), func(i int) (string, string) {
		return m.Arenas[i].Name, humanize.IBytes(m.Arenas[i].Nbytes)
	})
	section("key", len(m.Key), func(i int) (string, string) { return m.Key[i].Name, m.Key[i].Value })
	section("files that the load opened", len(m.Sources), func(i int) (string, string) {
		s := m.Sources[i]
		return s.Path, fmt.Sprintf("%s, %s", humanize.IBytes(s.Nbytes), time.Unix(0, s.MtimeNS).Format(time.RFC3339))
	})
	section("folders that the load looked into", len(m.Listings), func(i int) (string, string) {
		return m.Listings[i].Path, m.Listings[i].Digest
	})
	section("distributions", len(m.Distributions), func(i int) (string, string) {
		d := m.Distributions[i]
		if d.Version == "" {
			return d.Name, "(not installed)"
		}
		return d.Name, d.Version
	})
	section("modules", len(m.Modules), func(i int) (string, string) { return m.Modules[i].Name, m.Modules[i].Path })
	return t.Flush()
}
