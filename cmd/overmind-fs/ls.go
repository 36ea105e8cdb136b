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
)

func cmdLs() *cli.Command {
	return &cli.Command{
		Name:    "ls",
		Aliases: []string{"list"},
		Usage:   "list the entries",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "sort", Value: "id", Usage: "by `COLUMN`: " + sortNames() +
				". Sizes and counts: largest first; times: latest first"},
			&cli.BoolFlag{Name: "reverse", Usage: "the other way round"},
		},
		Action: func(c *cli.Context) error {
			order, ok := orders[c.String("sort")]
			if !ok {
				return usageError{fmt.Sprintf("--sort is %s, not %q", sortNames(), c.String("sort"))}
			}
			root, err := cacheRootOnly(c)
			if err != nil {
				return err
			}
			entries, err := readEntries(root)
			if err != nil {
				return err
			}
			entries = sorted(entries, order, c.Bool("reverse"))
			if c.Bool("json") {
				return listJSON(entries)
			}
			return listTable(os.Stdout, entries)
		},
	}
}

// What a table shows of something that a plain folder does not have.
const unknown = "-"

func listTable(w io.Writer, entries []*entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tCLASS\tMODEL\tSIZE\tAGE\tUSED\tHITS\tLEASES\tPINNED\tLOAD TOOK")
	for _, e := range entries {
		hits, leases, pinned, used := unknown, unknown, unknown, unknown
		if e.live {
			hits, leases, pinned, used = fmt.Sprint(e.hits), e.leasedBy(), "no", humanize.Time(e.lastUse)
			if e.pinned {
				pinned = "yes"
			}
		}
		_, _ = fmt.Fprintln(t, strings.Join([]string{
			e.id, cell(lastName(e.manifest.ClassName)), cell(e.manifest.ModelName), humanize.IBytes(e.bytes),
			age(e.created()), used, hits, leases, pinned, e.took().String(),
		}, "\t"))
	}
	return t.Flush()
}

// cell shows an empty text, and one that a filler chose.
func cell(text string) string {
	if text == "" {
		return unknown
	}
	return printable(text)
}

// lastName is the class of "package.module.Class".
func lastName(qualified string) string { return qualified[strings.LastIndexByte(qualified, '.')+1:] }

// age is humanize.Time without "ago".
func age(then time.Time) string {
	return strings.TrimSpace(humanize.RelTime(then, time.Now(), "", "from now"))
}

func (e *entry) created() time.Time { return time.Unix(0, e.manifest.CreatedNS) }

// took is how long the load without the cache took.
func (e *entry) took() time.Duration {
	return time.Duration(e.manifest.FillSeconds * float64(time.Second)).Round(100 * time.Millisecond)
}

// entryDoc is an entry in JSON; what is a pointer is not there for a plain folder. Fields are added, never changed.
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
	LeasePIDs   *[]int  `json:"lease_pids,omitempty"` // those that are known
	Shared      *uint64 `json:"shared,omitempty"`     // part of Bytes that other entries have too
	LastUse     *int64  `json:"last_use,omitempty"`   // Unix seconds
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
			used, pids := e.lastUse.Unix(), append([]int{}, e.leasePIDs...)
			d.Pinned, d.Hits, d.Leases, d.LeasePIDs, d.LastUse = &e.pinned, &e.hits, &e.leases, &pids, &used
			d.Shared = &e.shared
		}
		docs = append(docs, d)
	}
	return printJSON(docs)
}
