package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/prometheus/common/model"
	"github.com/urfave/cli/v2"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
)

func cmdStatus() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show totals, limits and which fast paths are active",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print status.json"},
		},
		Action: func(c *cli.Context) error {
			root, err := cacheRootOnly(c)
			if err != nil {
				return err
			}
			s, err := readStatus(root)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(s)
			}
			return printStatus(os.Stdout, s)
		},
	}
}

func printStatus(w io.Writer, s overmindfs.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("mount", "%s (pid %d, uid %d, version %s)", s.Mount, s.PID, s.UID, s.Version)
	line("up", "%s", time.Duration(s.UptimeS*float64(time.Second)).Round(time.Second))
	line("memory", "%s of %s: %s cached (%s pinned), %s staging, %s draining",
		humanize.IBytes(s.Bytes.Cached+s.Bytes.Staging+s.Bytes.Draining), humanize.IBytes(s.Limits.MaxBytes),
		humanize.IBytes(s.Bytes.Cached), humanize.IBytes(s.Bytes.Pinned),
		humanize.IBytes(s.Bytes.Staging), humanize.IBytes(s.Bytes.Draining))
	if s.Bytes.Shared > 0 {
		line("shared", "%s more if no entries shared arenas", humanize.IBytes(s.Bytes.Shared))
	}
	limit := ""
	if s.Limits.MaxEntries > 0 {
		limit = fmt.Sprintf(" of %d", s.Limits.MaxEntries)
	}
	if ttl := s.Limits.TTLS; ttl > 0 {
		limit += fmt.Sprintf(", idle ones go after %s", model.Duration(ttl*float64(time.Second)))
	}
	line("entries", "%d%s, %s, %s, %s", s.Entries, limit, english.Plural(s.Leases, "lease", ""),
		english.Plural(int(s.Hits), "hit", ""), english.Plural(int(s.Misses), "miss", ""))
	line("fills", "%d committed, %d failed, %d under way, %d requests did not fit",
		s.Fills.Committed, s.Fills.Failed, s.Fills.Staging, s.Refused)
	var evicted []string
	for _, r := range store.Reasons {
		if n := s.Evictions[r]; n > 0 {
			evicted = append(evicted, fmt.Sprintf("%d %s", n, r))
		}
	}
	line("evictions", "%s", cmp.Or(strings.Join(evicted, ", "), "none"))
	line("passthrough", "%s", activity(s.Passthrough.Active, s.Passthrough.Reason))
	line("fd passing", "%s", activity(s.FDPassing.Active, s.FDPassing.Reason))
	line("huge pages", "%s, on %d of %d arenas", activity(s.HugePages.Active, s.HugePages.Reason),
		s.HugePages.HugeArenas, s.HugePages.Arenas)
	line("pressure", "%s, %d events", activity(s.Pressure.Active, s.Pressure.Reason), s.Pressure.Events)
	return t.Flush()
}

func activity(active bool, reason string) string {
	if active {
		return "active"
	}
	return "not active: " + reason
}
