package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"overmind-fs/fs/fstest"
)

func left(t *testing.T, root string) string {
	t.Helper()
	ids, err := entryIDs(root)
	must(t, err)
	return strings.Join(ids, " ")
}

func wantLeft(t *testing.T, root, want string) {
	t.Helper()
	if got := left(t, root); got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

func TestEvictSelections(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	for _, id := range []string{"sd-1", "sd-2", "sd-3", "bert-1", "clip"} {
		f := fstest.Fill{Root: d.dir, ID: id, Size: mib, Mapped: true}
		must(t, f.Run())
	}
	wantRun(t, exitOK, "", "pin", "sd-2", "bert-1")

	wantRun(t, exitNotFound, "fits sd-1, sd-2, sd-3", "evict", "sd")
	wantLeft(t, d.dir, "bert-1 clip sd-1 sd-2 sd-3")
	wantRun(t, exitOK, "0 evicted, 0 B freed", "evict", "--older-than", "7d")
	wantLeft(t, d.dir, "bert-1 clip sd-1 sd-2 sd-3")
	wantRun(t, exitNotFound, `no such entry: "nothing"`, "evict", "--prefix", "sd", "nothing", "sd-1")
	wantLeft(t, d.dir, "bert-1 clip sd-2")
	out := wantRun(t, exitOK, "kept sd-2: it is pinned", "evict", "--prefix", "sd")
	if !strings.Contains(out, "0 evicted") {
		t.Error(out)
	}
	wantRun(t, exitOK, "evicted sd-2: 1.3 MiB\n1 evicted, 1.3 MiB freed", "evict", "--prefix", "sd", "--force")
	wantRun(t, exitOK, "1 evicted", "evict", "cl", "clip")
	wantRun(t, exitOK, "0 evicted", "evict", "--all")
	wantLeft(t, d.dir, "bert-1")
	wantRun(t, exitOK, "1 evicted", "evict", "bert") // meant exactly, so the pin does not matter
	wantLeft(t, d.dir, "")
}

// Idle time counts from the last use, in whole seconds.
func TestEvictOlderThan(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	for _, id := range []string{"idle", "used", "pinned"} {
		f := fstest.Fill{Root: d.dir, ID: id, Size: mib, Mapped: true}
		must(t, f.Run())
	}
	wantRun(t, exitOK, "", "pin", "pinned")
	use := func() time.Time {
		_, err := os.ReadFile(filepath.Join(d.dir, "pipelines", "used", "structure.pkl"))
		must(t, err)
		a, err := readAttributes(filepath.Join(d.dir, "pipelines", "used"))
		must(t, err)
		return a.lastUse
	}
	idle, err := readAttributes(filepath.Join(d.dir, "pipelines", "idle"))
	must(t, err)
	for deadline := time.Now().Add(30 * time.Second); use().Sub(idle.lastUse) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the last use does not move")
		}
	}
	now := time.Now()
	s := selection{olderThan: now.Sub(idle.lastUse) - time.Second, now: now}
	ids, errs := s.ids(d.dir)
	if len(ids) != 3 || errs != nil {
		t.Fatal(ids, errs)
	}
	for _, id := range ids {
		e, err := s.look(d.dir, id)
		must(t, err)
		if (e != nil) != (id == "idle") {
			t.Errorf("%s: %v", id, e)
		}
	}
	must(t, s.evict(d.dir))
	wantLeft(t, d.dir, "pinned used")
	wantRun(t, exitOK, "1 evicted", "evict", "--older-than", "1ms", "--force", "--prefix", "pin")
	wantLeft(t, d.dir, "used")
}

// An entry that cannot be read can be removed.
func TestEvictDamaged(t *testing.T) {
	root := plainFolder(t)
	for _, name := range []string{"pipelines/a", "pipelines/b/tensors", "staging", "locks"} {
		must(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(root, "pipelines/a/manifest"), []byte("damaged"), 0o600))
	wantRun(t, exitOK, "1 evicted", "evict", "a", "--root", root)
	wantRun(t, exitOK, "1 evicted", "evict", "--all", "--root", root)
	wantLeft(t, root, "")
}
