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

// What a process finds in a container, by version of the cgroups and by whether it sees its own as the top.
func TestTotalMemoryInContainers(t *testing.T) {
	const v1, none = "memory.limit_in_bytes", "9223372036854771712"
	for name, c := range map[string]struct {
		cgroup string            // /proc/self/cgroup
		files  map[string]string // below /sys/fs/cgroup
		want   uint64
	}{
		"version 2": {"0::/\n", map[string]string{"memory.max": "1000000"}, 1000000},
		"version 2, privileged, which sees the machine's": {
			"0::/kubepods.slice/pod1/c1\n",
			map[string]string{"kubepods.slice/memory.max": "max", "kubepods.slice/pod1/memory.max": "3000000", "kubepods.slice/pod1/c1/memory.max": "2000000"},
			2000000,
		},
		"version 2, a limit of the whole pod": {
			"0::/pod1/c1\n", map[string]string{"pod1/memory.max": "3000000", "pod1/c1/memory.max": "max"}, 3000000,
		},
		"version 2, memory.high": {"0::/\n", map[string]string{"memory.max": "3000000", "memory.high": "2000000"}, 2000000},
		"version 1":              {"4:memory:/\n", map[string]string{"memory/" + v1: "1000000"}, 1000000},
		"version 1 with the path of the host": {
			"5:cpu:/docker/c1\n4:memory:/docker/c1\n", map[string]string{"memory/" + v1: "1000000"}, 1000000,
		},
		"no limit":                    {"0::/\n", map[string]string{"memory.max": "max"}, 4096 << 10},
		"no limit, version 1":         {"4:memory:/\n", map[string]string{"memory/" + v1: none}, 4096 << 10},
		"a limit above what is there": {"0::/\n", map[string]string{"memory.max": "9000000000"}, 4096 << 10},
		"no files of cgroups":         {"0::/\n", nil, 4096 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			put := func(path, text string) {
				path = filepath.Join(root, path)
				must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must(t, os.WriteFile(path, []byte(text), 0o600))
			}
			put("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n")
			put("proc/7/cgroup", c.cgroup)
			for file, text := range c.files {
				put(filepath.Join("sys/fs/cgroup", file), text+"\n")
			}
			total, _, err := MemoryOf(root, 7)
			must(t, err)
			if total != c.want {
				t.Errorf("%d, want %d", total, c.want)
			}
		})
	}
}

func TestScarceCanBeRead(t *testing.T) {
	if _, err := Scarce(); err != nil {
		t.Error(err)
	}
}
