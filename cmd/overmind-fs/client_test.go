package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

func TestClientCommandsOnMount(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv("OVERMIND_ROOT", d.dir)
	wantRun(t, exitOK, "ID", "ls")
	for _, id := range []string{"tiny-aaa", "tiny-bbb", "other-ccc"} {
		fill(t, d.dir, id)
	}
	_, err := os.ReadFile(filepath.Join(d.dir, "pipelines", "tiny-bbb", "structure.pkl"))
	must(t, err)

	out := wantRun(t, exitOK, "tiny-aaa", "ls", "--sort", "hits")
	if lines := strings.Split(out, "\n"); !strings.HasPrefix(lines[1], "tiny-bbb") || !strings.Contains(lines[1], "3.3 MiB") {
		t.Errorf("ls --sort hits:\n%s", out)
	}
	var docs []entryDoc
	must(t, json.Unmarshal([]byte(wantRun(t, exitOK, "", "ls", "--json")), &docs))
	if len(docs) != 3 || docs[2].ID != "tiny-bbb" || *docs[2].Hits != 1 || docs[2].ModelName != "tiny" {
		t.Errorf("ls --json: %+v", docs)
	}
	wantRun(t, exitOK, "/models/tiny", "show", "other")
	wantRun(t, exitNotFound, `"tiny" fits tiny-aaa, tiny-bbb`, "show", "tiny")
	wantRun(t, exitNotFound, `no such entry: ""`, "show", "")
	wantRun(t, exitNotFound, "no such entry", "show", "nothing")
	var doc map[string]any
	must(t, json.Unmarshal([]byte(wantRun(t, exitOK, "", "show", "--json", "tiny-aaa")), &doc))
	if doc["id"] != "tiny-aaa" {
		t.Errorf("show --json: %v", doc)
	}

	wantRun(t, exitOK, "", "pin", "tiny-aaa", "other")
	wantRun(t, exitOK, "pinned     true", "show", "tiny-aaa")
	wantRun(t, exitOK, "", "unpin", "other")
	s, err := readStatus(d.dir)
	must(t, err)
	if s.Bytes.Pinned == 0 || s.Bytes.Pinned*3 != s.Bytes.Cached {
		t.Errorf("pinned %d of %d", s.Bytes.Pinned, s.Bytes.Cached)
	}
	wantRun(t, exitOK, "passthrough", "status")
	must(t, json.Unmarshal([]byte(wantRun(t, exitOK, "", "status", "--json", "--root", d.dir)), &s))

	wantRun(t, exitNotFound, `no such entry: "nothing"`, "evict", "nothing", "tiny-aaa")
	wantRun(t, exitOK, "2 evicted, 6.6 MiB freed", "evict", "--all")
	if ids, err := entryIDs(d.dir); err != nil || len(ids) != 0 {
		t.Errorf("left: %v (%v)", ids, err)
	}
}

// plainFolder is an empty cache without a daemon.
func plainFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"pipelines", "staging", "locks"} {
		must(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(root, "CACHEDIR.TAG"), []byte("Signature: 0\novermind-format: 1\n"), 0o644))
	return root
}

// The same commands on a plain folder, filled by the same steps.
func TestClientCommandsOnPlainFolder(t *testing.T) {
	root := plainFolder(t)
	f := fstest.Fill{Root: root, ID: "tiny-aaa", Size: mib, Mapped: true}
	must(t, f.Run())
	wantRun(t, exitOK, "tiny-aaa", "ls", "--root", root)
	wantRun(t, exitOK, "tiny-aaa", "--root", root, "ls")
	wantRun(t, exitOK, "in 1 entry\n", "du", "--root", root)
	wantRun(t, exitNotFound, "does not know when an entry was used", "evict", "--older-than", "1ms", "--root", root)
	wantRun(t, exitNotFound, "a plain folder has no status", "top", "--root", root)
	wantRun(t, exitOK, "/models/tiny", "show", "tiny", "--root", root)
	wantRun(t, exitNotFound, "a plain folder has no status", "status", "--root", root)
	wantRun(t, exitNotFound, "a plain folder evicts nothing", "pin", "tiny", "--root", root)
	wantRun(t, exitOK, "", "evict", "tiny", "--root", root)
	if ids, err := entryIDs(root); err != nil || len(ids) != 0 {
		t.Errorf("left: %v (%v)", ids, err)
	}
}

// What goes leaves its place whole, and what entries share is freed with the last of them.
func TestEvictFromAPlainFolder(t *testing.T) {
	root := plainFolder(t)
	first := fstest.Fill{Root: root, ID: "a", Size: 8 * mib, Mapped: true}
	must(t, first.Run())
	second := fstest.Fill{Root: root, ID: "b", Size: 8 * mib, Mapped: true, From: first.Entry()}
	must(t, second.Run())
	const files = 5000
	for n := range files {
		must(t, os.WriteFile(filepath.Join(second.Entry(), "tensors", fmt.Sprint(n)), nil, 0o600))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for { // a part of b, while it still has its name
			names, err := os.ReadDir(filepath.Join(second.Entry(), "tensors"))
			if err != nil {
				return
			}
			if _, err := os.Stat(second.Entry()); err == nil && len(names) != files+1 {
				t.Errorf("%d files of %d are there", len(names), files+1)
				return
			}
		}
	}()
	wantRun(t, exitOK, "(8.0 MiB shared)", "du", "--root", root)
	wantRun(t, exitOK, "1 evicted, 294 KiB freed", "evict", "b", "--root", root)
	<-done
	wantRun(t, exitOK, "1 evicted, 8.3 MiB freed", "evict", "a", "--root", root)
	for _, name := range []string{"pipelines", "staging"} {
		left, err := os.ReadDir(filepath.Join(root, name))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: %v (%v)", name, left, err)
		}
	}
}

// A folder that has folders in pipelines is not a cache for that.
func TestEvictRemovesNothingFromAnotherFolder(t *testing.T) {
	root, outside := plainFolder(t), t.TempDir()
	for _, folder := range []string{filepath.Join(root, "pipelines", "text"), filepath.Join(outside, "mine")} {
		must(t, os.MkdirAll(folder, 0o755))
		must(t, os.WriteFile(filepath.Join(folder, "file"), nil, 0o644))
	}
	tag := filepath.Join(root, "CACHEDIR.TAG")
	must(t, os.Rename(tag, tag+"~"))
	for _, words := range [][]string{{"--all"}, {"text"}, {"--prefix", "text"}} {
		wantRun(t, exitNotFound, "no CACHEDIR.TAG of overmind-fs", append(append([]string{"evict"}, words...), "--root", root)...)
	}
	must(t, os.Rename(tag+"~", tag))
	pipelines := filepath.Join(root, "pipelines")
	must(t, os.Rename(pipelines, pipelines+"~"))
	must(t, os.Symlink(outside, pipelines))
	wantRun(t, exitNotFound, "its pipelines are a link", "evict", "--all", "--root", root)
	must(t, os.Remove(pipelines))
	must(t, os.Rename(pipelines+"~", pipelines))
	for _, file := range []string{filepath.Join(pipelines, "text", "file"), filepath.Join(outside, "mine", "file")} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	wantRun(t, exitOK, "evicted text", "evict", "--all", "--root", root) // damaged, but of a cache
}

func TestNoCache(t *testing.T) {
	t.Setenv("OVERMIND_ROOT", "")
	wantRun(t, exitUsage, "OVERMIND_ROOT", "ls")
	wantRun(t, exitNotFound, "not an overmind mount", "ls", "--root", t.TempDir())
	wantRun(t, exitNotFound, "there is no such folder", "status", "--root", "/nope")
	wantRun(t, exitUsage, `status takes no arguments, got "/nope"`, "status", "/nope")
}

// Whatever the daemon's end was, a command says what to do about it, and does not wait for it.
func TestCommandsWithoutADaemon(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(d.dir, link))
	commands := [][]string{{"ls"}, {"status"}, {"show", "a"}, {"evict", "a"}, {"pin", "a"}, {"du"}, {"top"}, {"ls", "--root", link}}
	must(t, d.cmd.Process.Signal(syscall.SIGSTOP))
	for _, args := range commands[:2] {
		wantRun(t, exitNoDaemon, "does not answer", args...)
	}
	must(t, d.cmd.Process.Kill())
	<-d.ended
	for _, args := range commands {
		wantRun(t, exitNoDaemon, "overmind-fs mount "+d.dir, args...)
	}
	wantRun(t, exitOK, "", "umount") // what OVERMIND_ROOT says
	wantRun(t, exitNotFound, "not an overmind mount", "umount", link)
}

// A daemon that hangs is not taken for one that answers, nor for one that will end by itself.
func TestMountAndUmountOfASilentDaemon(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	must(t, d.cmd.Process.Signal(syscall.SIGSTOP))
	wantRun(t, exitNoDaemon, "overmind-fs umount "+d.dir, "mount", d.dir)
	wantRun(t, exitNoDaemon, "does not answer", "mount", "--background", "--log-file", logFile(t), d.dir)
	wantRun(t, exitOK, "may still be there", "umount", d.dir)
	if kind, _ := overmindfs.MountedType(d.dir); kind != "" {
		t.Error("still mounted")
	}
	must(t, d.cmd.Process.Signal(syscall.SIGCONT))
	d.wantExit(t, exitOK)
}
