package store

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	g := cgroup{
		dir: dir, limitFile: "memory.max", throttleFile: "memory.high", usageFile: "memory.current",
		inactive: "inactive_file", actives: "active_file",
	}
	want := func(limit, headroom uint64) {
		t.Helper()
		if got, err := g.limit(); err != nil || got != limit {
			t.Errorf("limit %d (%v), want %d", got, err, limit)
		}
		if got, err := g.headroom(); err != nil || got != headroom {
			t.Errorf("headroom %d (%v), want %d", got, err, headroom)
		}
	}
	if _, err := g.limit(); err == nil {
		t.Error("a level without files has a limit")
	}
	put("memory.max", "max\n")
	want(math.MaxUint64, math.MaxUint64)
	put("memory.max", "1000\n")
	put("memory.current", "700\n")
	want(1000, 300)
	put("memory.stat", "anon 600\ninactive_file 60\nactive_file 40\n")
	want(1000, 400) // page cache counts as free
	put("memory.high", "800\n")
	want(800, 200)
	put("memory.high", "max\n")
	put("memory.current", "1200\n") // over the limit, while the kernel takes some back
	want(1000, 0)
	g.throttleFile = "" // version 1: no limit is a huge number
	put("memory.max", "9223372036854771712\n")
	want(9223372036854771712, math.MaxUint64)
}

func TestScarceCanBeRead(t *testing.T) {
	if _, err := Scarce(); err != nil {
		t.Error(err)
	}
}
