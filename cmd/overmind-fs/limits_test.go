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

// What is open for entries never reaches the limit of the process; older entries go.
func TestFewDescriptors(t *testing.T) {
	d := startPrepared(t, func(c *exec.Cmd) error {
		program, err := os.Executable()
		c.Path = "/bin/sh"
		c.Args = append([]string{"sh", "-c", `ulimit -n 128 && exec "$0" "$@"`, program}, c.Args[1:]...)
		return err
	}, t.TempDir())
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
