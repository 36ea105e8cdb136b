package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

func TestParsePressure(t *testing.T) {
	for in, want := range map[string]float64{"off": 0, "10%": 0.1, "0.5 %": 0.005, "100%": 1} {
		if got, err := parsePressure(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
}

func TestTTL(t *testing.T) {
	d := startDaemon(t, t.TempDir(), "--ttl", "200ms")
	fill(t, d.dir, "a")
	waitStatus(t, d.dir, func(s overmindfs.Status) bool {
		return s.Entries == 0 && s.Evictions[store.ReasonTTL] == 1 && s.Limits.TTLS == 0.2
	})
}

// fewFiles makes a daemon start with few descriptors.
func fewFiles(n int) func(*exec.Cmd) error {
	return func(c *exec.Cmd) error {
		program, err := os.Executable()
		c.Path = "/bin/sh"
		c.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, n), program}, c.Args[1:]...)
		return err
	}
}

// What is open for entries never reaches the limit of the process; older entries go.
func TestFewDescriptors(t *testing.T) {
	d := startPrepared(t, fewFiles(128), t.TempDir())
	for n := range 60 {
		f := fstest.Fill{Root: d.dir, ID: fmt.Sprint("e", n), Size: 4096}
		must(t, f.Run())
		_, err := os.ReadFile(fstest.Arena(f.Entry()))
		must(t, err)
	}
	m := metrics(t, d.dir)
	if m["process_open_fds"] > m["process_max_fds"]-10 {
		t.Errorf("%v of %v descriptors are open", m["process_open_fds"], m["process_max_fds"])
	}
	if m["process_max_fds"] == 128 && m[`overmind_evictions_total{reason="max_files"}`] == 0 {
		t.Error("nothing was evicted")
	}
}

// A small entry takes one descriptor, also of a daemon that takes over; with one for each file a third of these would fit.
func TestManySmallEntries(t *testing.T) {
	const few, entries = 128, 90
	d := startPrepared(t, fewFiles(few), t.TempDir())
	limit := metrics(t, d.dir)["process_max_fds"] // few, unless it may raise it (CAP_SYS_RESOURCE)
	var all []fstest.Fill
	for n := range entries {
		f := fstest.Small(d.dir, fmt.Sprint("e", n))
		must(t, f.Run())
		all = append(all, f)
	}
	wantAll := func() {
		t.Helper()
		for _, f := range all {
			must(t, f.Check())
		}
	}
	wantAll()
	if n := memfds(t, d.cmd.Process.Pid); n != entries+1 {
		t.Errorf("%d memfds", n)
	}
	needBeneath(t)
	n := startPrepared(t, fewFiles(few), d.dir, "--replace")
	d.wantEnd(t)
	wantAll()
	if got := memfds(t, n.cmd.Process.Pid); got != entries+1 {
		t.Errorf("%d memfds after a takeover", got)
	}
	if m := metrics(t, d.dir); m["process_max_fds"] != limit || m[`overmind_evictions_total{reason="max_files"}`] != 0 {
		t.Errorf("%v descriptors, %v evictions", m["process_max_fds"], m[`overmind_evictions_total{reason="max_files"}`])
	}
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "--all")
	eventually(t, "all memory is let go", func() bool { return memfds(t, n.cmd.Process.Pid) == 0 })
}
