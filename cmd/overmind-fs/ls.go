package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"
)

// orders are the values of --sort. Sizes and counts are listed largest first.
var orders = map[string]func(a, b *entry) int{
	"id":      func(a, b *entry) int { return cmp.Compare(a.id, b.id) },
	"size":    func(a, b *entry) int { return cmp.Compare(b.bytes, a.bytes) },
	"hits":    func(a, b *entry) int { return cmp.Compare(b.hits, a.hits) },
	"used":    func(a, b *entry) int { return b.lastUse.Compare(a.lastUse) },
	"created": func(a, b *entry) int { return cmp.Compare(b.manifest.CreatedNS, a.manifest.CreatedNS) },
}

func cmdLs() *cli.Command {
	return &cli.Command{
		Name:    "ls",
		Aliases: []string{"list"},
		Usage:   "list the entries",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "sort", Value: "id", Usage: "by id, size, hits, used or created"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usageError{"ls takes no arguments; give the cache with --root"}
			}
			order, ok := orders[c.String("sort")]
			if !ok {
				return usageError{fmt.Sprintf("--sort is id, size, hits, used or created, not %q", c.String("sort"))}
			}
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			entries, err := readEntries(root)
			if err != nil {
				return err
			}
			slices.SortStableFunc(entries, order)
			if c.Bool("json") {
				return listJSON(entries)
			}
			return listTable(os.Stdout, entries)
		},
	}
}

// readEntries reads all entries and leaves out those that go in the meantime.
func readEntries(root string) ([]*entry, error) {
	if all, err := listedEntries(root); !errors.Is(err, os.ErrNotExist) {
		return all, err
	}
	ids, err := entryIDs(root)
	if err != nil {
		return nil, err
	}
	var entries []*entry
	for _, id := range ids {
		e, err := readEntry(root, id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "overmind-fs:", err)
			continue
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func listTable(w io.Writer, entries []*entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tSIZE\tHITS\tLEASES\tPINNED\tUSED\tLOAD TOOK")
	for _, e := range entries {
		hits, leases, pinned, used := "-", "-", "-", "-"
		if e.live {
			hits, leases, used = fmt.Sprint(e.hits), fmt.Sprint(e.leases), humanize.Time(e.lastUse)
			if e.pinned {
				pinned = "yes"
			}
		}
		took := time.Duration(e.manifest.FillSeconds * float64(time.Second)).Round(100 * time.Millisecond)
		_, _ = fmt.Fprintln(t, strings.Join([]string{
			e.id, humanize.IBytes(e.bytes), hits, leases, pinned, used, took.String(),
		}, "\t"))
	}
	return t.Flush()
}

type entryDoc struct {
	ID          string  `json:"id"`
	ClassName   string  `json:"class_name"`
	ModelName   string  `json:"model_name"`
	Bytes       uint64  `json:"bytes"`
	UID         uint32  `json:"uid"`
	CreatedNS   int64   `json:"created_ns"`
	FillSeconds float64 `json:"fill_seconds"`
	Pinned      *bool   `json:"pinned,omitempty"`
	Hits        *uint64 `json:"hits,omitempty"`
	Leases      *int    `json:"leases,omitempty"`
	LastUse     *int64  `json:"last_use,omitempty"`
}

func listJSON(entries []*entry) error {
	docs := []entryDoc{}
	for _, e := range entries {
		m := e.manifest
		d := entryDoc{
			ID: e.id, ClassName: m.ClassName, ModelName: m.ModelName, Bytes: e.bytes, UID: e.uid,
			CreatedNS: m.CreatedNS, FillSeconds: m.FillSeconds,
		}
		if e.live {
			used := e.lastUse.Unix()
			d.Pinned, d.Hits, d.Leases, d.LastUse = &e.pinned, &e.hits, &e.leases, &used
		}
		docs = append(docs, d)
	}
	return printJSON(docs)
}
