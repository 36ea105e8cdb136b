package main

import (
	"strings"
	"testing"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
)

// What docs/operations.md tells an operator to compare is there, and the limits as they were given.
func TestStatusText(t *testing.T) {
	var s overmindfs.Status
	s.Hits, s.Misses, s.Leases, s.Entries = 7, 5, 2, 3
	s.Limits = overmindfs.StatusLimits{MaxBytes: 1 << 30, MaxEntries: 9, TTLS: 36 * 3600}
	s.Evictions = map[store.Reason]uint64{store.ReasonTTL: 4, store.ReasonRoom: 1, store.ReasonRemoved: 0}
	var out strings.Builder
	must(t, printStatus(&out, s))
	for _, want := range []string{
		"3 of 9, idle ones go after 1d12h, 2 leases, 7 hits, 5 misses\n", "1 room, 4 ttl\n", "0 B of 1.0 GiB",
		"not active: ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	must(t, printStatus(&out, overmindfs.Status{}))
	if !strings.Contains(out.String(), "0, 0 leases, 0 hits, 0 misses\n") || !strings.Contains(out.String(), "none\n") {
		t.Error(out.String())
	}
}
