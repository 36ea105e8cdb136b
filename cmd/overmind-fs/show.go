package main

import (
	"fmt"
	"io"
	"os"
	"strings"
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
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: fmt.Sprintf("all tensors, not the %d largest", topTensors)},
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
			return show(os.Stdout, e, c.Bool("all"))
		},
		BashComplete: completeIDs,
	}
}

// check makes sure that the indices in a manifest lead somewhere; that of a plain folder is checked by nobody else.
func (e *entry) check() error {
	m := e.manifest
	files := schema.Files{ID: e.id, Arenas: map[string]uint64{}, StructureNbytes: m.StructureNbytes}
	for _, a := range m.Arenas {
		files.Arenas[a.Name] = a.Nbytes
	}
	if err := m.Validate(files); err != nil {
		return fmt.Errorf("%s: %w", e.id, err)
	}
	return nil
}

func showJSON(e *entry) error {
	if err := e.check(); err != nil {
		return err
	}
	text, err := e.manifest.JSON()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

func show(w io.Writer, e *entry, all bool) error {
	if err := e.check(); err != nil {
		return err
	}
	m := e.manifest
	p := newPage(w)
	p.line("id", e.id)
	p.line("class", m.ClassName)
	p.line("model", m.ModelName)
	p.line("loader", m.Loader)
	p.line("scope", m.Scope)
	p.line("owner", fmt.Sprintf("uid %d", e.uid))
	p.line("created", fmt.Sprintf("%s (%s)", e.created().Format(time.RFC3339), humanize.Time(e.created())))
	p.line("load took", e.took())
	p.line("size", humanize.IBytes(e.bytes))
	if e.shared > 0 {
		p.line("shared", humanize.IBytes(e.shared)+", stored once for several entries")
	}
	p.line("structure", humanize.IBytes(m.StructureNbytes))
	p.line("storages", len(m.Storages))
	p.line("tensors", len(m.Tensors))
	if e.live {
		p.line("hits", e.hits)
		p.line("leases", e.leasedBy())
		p.line("pinned", e.pinned)
		p.line("last use", humanize.Time(e.lastUse))
	}
	p.section("what made the key")
	for _, f := range m.Key {
		p.row(f.Name, f.Value)
	}
	p.section("components")
	for _, c := range components(m) {
		p.row(c.name, humanize.IBytes(c.bytes))
	}
	tensors := tensorsBySize(m)
	title := "tensors by size"
	if !all && len(tensors) > topTensors {
		title = fmt.Sprintf("the %d largest tensors of %d (all: --all)", topTensors, len(tensors))
		tensors = tensors[:topTensors]
	}
	p.section(title)
	for _, t := range tensors {
		p.row(t.name, t.component, humanize.IBytes(t.nbytes), t.dtype, t.shape)
	}
	p.section("package versions")
	for _, d := range m.Distributions {
		version := d.Version
		if version == "" {
			version = "(not installed)"
		}
		p.row(d.Name, version)
	}
	p.section("files that the load opened")
	for _, s := range m.Sources {
		p.row(s.Path, humanize.IBytes(s.Nbytes), time.Unix(0, s.MtimeNS).Format(time.RFC3339))
	}
	p.section("folders that the load looked into, and variables")
	for _, l := range m.Listings {
		p.row(l.Path, l.Digest)
	}
	p.section("modules outside of packages")
	for _, x := range m.Modules {
		p.row(x.Name, x.Path)
	}
	return p.flush()
}

// page is a text of aligned lines, in sections that have a heading only if there is something in them.
type page struct {
	table   *tabwriter.Writer
	heading string
}

func newPage(w io.Writer) *page { return &page{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (p *page) section(heading string) { p.heading = heading }

func (p *page) line(name string, value any) {
	_, _ = fmt.Fprintf(p.table, "%s\t%s\n", name, cell(fmt.Sprint(value)))
}

func (p *page) row(cells ...string) {
	if p.heading != "" {
		_, _ = fmt.Fprintf(p.table, "\n%s\n", p.heading)
		p.heading = ""
	}
	for i, text := range cells {
		cells[i] = printable(text)
	}
	_, _ = fmt.Fprintf(p.table, "  %s\n", strings.Join(cells, "\t"))
}

func (p *page) flush() error { return p.table.Flush() }
