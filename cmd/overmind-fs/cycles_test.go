package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

// metrics reads the file metrics of a mount.
func metrics(t *testing.T, root string) map[string]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "metrics"))
	must(t, err)
	defer func() { _ = f.Close() }()
	out := map[string]float64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			if out[name], err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// Loads and evictions, over and over, leave the daemon as it was.
func TestLoadAndEvictCycles(t *testing.T) {
	const warm, cycles, size = 50, 500, mib / 2
	group, err := fstest.NewCgroup(uint64(1024 * mib))
	if err != nil {
		t.Logf("shared memory is not looked at: %v", err)
		group = nil
	} else {
		t.Cleanup(func() { must(t, group.Remove()) })
	}
	d := startDaemonIn(t, group, t.TempDir())
	f := fstest.Fill{Root: d.dir, ID: "a", Size: size}
	cycle := func(n int) {
		must(t, f.Run())
		for _, name := range []string{"structure.pkl", "manifest", "tensors/" + fstest.ArenaName, "storages/1.half_way"} {
			_, err := os.ReadFile(filepath.Join(f.Entry(), name))
			must(t, err)
		}
		if n%2 == 0 {
			must(t, unix.Rmdir(f.Entry()))
		} else {
			must(t, os.RemoveAll(f.Entry()))
		}
	}
	type use struct{ goroutines, fds, rss, shmem float64 }
	look := func() use {
		waitStatus(t, d.dir, func(s overmindfs.Status) bool { return s.Bytes == overmindfs.StatusBytes{} })
		m := metrics(t, d.dir)
		u := use{goroutines: m["go_goroutines"], fds: m["process_open_fds"], rss: m["process_resident_memory_bytes"]}
		if group != nil {
			used, err := group.Usage()
			must(t, err)
			u.shmem = float64(used)
		}
		return u
	}
	for n := range warm {
		cycle(n)
	}
	before := look()
	for n := range cycles {
		cycle(n)
	}
	// Goroutines that read requests and descriptors of the runtime come and go by a few; a leak would be one a cycle.
	var after use
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		after = look()
		if after.goroutines <= before.goroutines+10 && after.fds <= before.fds+10 || time.Now().After(deadline) {
			break
		}
	}
	const margin = float64(48 * mib) // the arenas of all cycles have 250 MiB
	if after.goroutines > before.goroutines+10 || after.fds > before.fds+10 ||
		after.rss > before.rss+margin || after.shmem > before.shmem+margin {
		t.Errorf("before %+v, after %+v", before, after)
	}
	must(t, d.cmd.Process.Signal(unix.SIGTERM))
	d.wantExit(t, exitOK)
}
