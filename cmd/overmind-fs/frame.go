package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	overmindfs "overmind-fs/fs"
)

// sample is what top sees in one look.
type sample struct {
	at      time.Time
	status  overmindfs.Status
	entries map[string]attributes
}

// Styles of a line on a terminal, as the parameters of SGR.
const (
	stylePlain   = ""
	styleBold    = "1"
	styleHeading = "7"
	styleGood    = "32"
	styleTight   = "33"
	styleFull    = "31"
)

// line is a line of a frame, without its end.
type line struct{ style, text string }

// frame is what top shows: totals, and the entries by what they do. before may be nil.
func frame(before, now *sample) []line {
	s := now.status
	used := s.Bytes.Cached + s.Bytes.Staging + s.Bytes.Draining
	share := float64(used) / float64(max(s.Limits.MaxBytes, 1))
	evicted := uint64(0)
	for _, n := range s.Evictions {
		evicted += n
	}
	rate := ""
	if before != nil {
		rate = fmt.Sprintf(" (%s/s)", perSecond(before.status.Hits, s.Hits, now.at.Sub(before.at)))
	}
	up := time.Duration(s.UptimeS * float64(time.Second)).Round(time.Second)
	lines := []line{
		{styleBold, fmt.Sprintf("%s  %s  pid %d, up %s, version %s", now.at.Format(time.TimeOnly), s.Mount, s.PID, up, s.Version)},
		{levelStyle(share), fmt.Sprintf("[%s] %s of %s: %s cached (%s pinned), %s in fills, %s draining", bar(share),
			humanize.IBytes(used), humanize.IBytes(s.Limits.MaxBytes), humanize.IBytes(s.Bytes.Cached),
			humanize.IBytes(s.Bytes.Pinned), humanize.IBytes(s.Bytes.Staging), humanize.IBytes(s.Bytes.Draining))},
		{stylePlain, fmt.Sprintf("%s, %s, %s%s, %s, %d under way, %d evicted, %d refused",
			english.Plural(s.Entries, "entry", "entries"), english.Plural(s.Leases, "lease", ""),
			english.Plural(int(s.Hits), "hit", ""), rate, english.Plural(int(s.Fills.Committed), "fill", ""), s.Fills.Staging, evicted, s.Refused)},
		{stylePlain, ""},
	}
	table := strings.Split(strings.TrimRight(entryTable(before, now), "\n"), "\n")
	lines = append(lines, line{styleHeading, table[0]})
	for _, text := range table[1:] {
		lines = append(lines, line{stylePlain, text})
	}
	return lines
}

// row is an entry in the table.
type row struct {
	id string
	attributes
	delta uint64 // hits since the look before
}

func entryTable(before, now *sample) string {
	var rows []row
	for _, id := range slices.Sorted(maps.Keys(now.entries)) {
		r := row{id: id, attributes: now.entries[id]}
		if before != nil {
			r.delta = since(before.entries[id].hits, r.hits)
		}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.delta, a.delta), cmp.Compare(b.leases, a.leases), b.lastUse.Compare(a.lastUse))
	})
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "HITS/S\tHITS\tSIZE\tUSED\tPINNED\tID\tLEASES")
	for _, r := range rows {
		rate, pinned := unknown, "no"
		if before != nil {
			rate = perSecond(0, r.delta, now.at.Sub(before.at))
		}
		if r.pinned {
			pinned = "yes"
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", rate, r.hits, humanize.IBytes(r.bytes),
			humanize.RelTime(r.lastUse, now.at, "ago", "from now"), pinned, r.id, r.leasedBy())
	}
	_ = t.Flush() // into memory
	return out.String()
}

// since is the growth of a counter, which starts anew with a new daemon or entry.
func since(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func perSecond(before, now uint64, took time.Duration) string {
	return fmt.Sprintf("%.1f", float64(since(before, now))/max(took.Seconds(), 1e-9))
}

const barWidth = 30

func bar(share float64) string {
	filled := min(int(share*barWidth), barWidth)
	return strings.Repeat("#", filled) + strings.Repeat("-", barWidth-filled)
}

func levelStyle(share float64) string {
	switch {
	case share < 0.8:
		return styleGood
	case share < 0.95:
		return styleTight
	default:
		return styleFull
	}
}
