package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/urfave/cli/v2"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
)

func cmdDu() *cli.Command {
	return &cli.Command{
		Name:      "du",
		Usage:     "show where the memory is, largest first",
		ArgsUsage: "[ID…]",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also each component and file of an entry"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON: the entries with all their files, and the totals in bytes"},
		},
		BashComplete: completeIDs,
		Action: func(c *cli.Context) error {
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			doc, err := readUsage(root, c.Args().Slice())
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(doc)
			}
			return printUsage(os.Stdout, doc, c.Bool("all"))
		},
	}
}

// usage is what du shows, in bytes.
type usage struct {
	Entries []entryUsage `json:"entries"`
	Total   uint64       `json:"total"` // of these entries, as if they shared nothing
	// Of the whole mount; a plain folder has none.
	Mount *overmindfs.StatusBytes `json:"mount,omitempty"`
}

type entryUsage struct {
	ID     string      `json:"id"`
	Bytes  uint64      `json:"bytes"`
	Shared uint64      `json:"shared,omitempty"` // part of Bytes: stored once for several entries
	Files  []fileUsage `json:"files"`
}

// fileUsage is a component, the structure or the manifest.
type fileUsage struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// readUsage reads the entries named, or all.
func readUsage(root string, prefixes []string) (usage, error) {
	doc := usage{Entries: []entryUsage{}}
	var entries []*entry
	if len(prefixes) == 0 {
		all, err := readEntries(root)
		if err != nil {
			return doc, err
		}
		entries = all
	}
	for _, prefix := range prefixes {
		id, err := findEntry(root, prefix)
		if err != nil {
			return doc, err
		}
		e, err := readEntry(root, id)
		if err != nil {
			return doc, err
		}
		entries = append(entries, e)
	}
	for _, e := range entries {
		u := entryUsage{ID: e.id, Bytes: e.bytes, Shared: e.shared}
		rest := e.bytes
		add := func(name string, n uint64) {
			u.Files = append(u.Files, fileUsage{name, n})
			rest -= n
		}
		for _, c := range components(e.manifest) {
			add(c.name, c.bytes)
		}
		add(store.StructureName, e.manifest.StructureNbytes)
		add(store.ManifestName, rest)
		slices.SortStableFunc(u.Files, func(a, b fileUsage) int { return cmp.Compare(b.Bytes, a.Bytes) })
		doc.Entries = append(doc.Entries, u)
		doc.Total += u.Bytes
	}
	slices.SortStableFunc(doc.Entries, func(a, b entryUsage) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if s, err := readStatus(root); err == nil {
		doc.Mount = &s.Bytes
	}
	return doc, nil
}

func printUsage(w io.Writer, doc usage, all bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(n uint64, name string) { _, _ = fmt.Fprintf(t, "%s\t  %s\n", humanize.IBytes(n), name) }
	for _, e := range doc.Entries {
		name := e.ID
		if e.Shared > 0 {
			name += fmt.Sprintf(" (%s shared)", humanize.IBytes(e.Shared))
		}
		line(e.Bytes, name)
		for _, f := range e.Files {
			if all {
				line(f.Bytes, "  "+printable(f.Name))
			}
		}
	}
	line(doc.Total, "in "+english.Plural(len(doc.Entries), "entry", "entries"))
	if m := doc.Mount; m != nil {
		if m.Shared > 0 {
			line(m.Shared, "less, of all entries: what several share is stored once")
		}
		line(m.Pinned, "pinned, of all entries")
		line(m.Staging, "in fills under way")
		line(m.Draining, "draining: evicted, and still held by programs")
		line(m.Cached+m.Staging+m.Draining, "in all")
	}
	return t.Flush()
}
