package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	overmindfs "overmind-fs/fs"
)

// sharedFolder is one as containers have it: mounts and sockets lie beside each other. t.TempDir is too long a name for
// a socket.
func sharedFolder(t *testing.T, names ...string) string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "overmind-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(base)) })
	for _, name := range names {
		must(t, os.Mkdir(filepath.Join(base, name), 0o755))
	}
	return base
}

// sockets lists the folders of daemons in a control folder.
func sockets(t *testing.T, folder string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "overmind-fs-*"))
	must(t, err)
	return names
}

func wantSocket(t *testing.T, mount, folder string) {
	t.Helper()
	target, err := os.Readlink(filepath.Join(mount, "control"))
	must(t, err)
	path, err := overmindfs.ControlSocket(mount)
	must(t, err)
	if !strings.HasPrefix(target, "../control/") || filepath.Dir(filepath.Dir(path)) != folder {
		t.Errorf("%s leads to %s", target, path)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("%s: %v, %v", path, info, err)
	}
}

// Two daemons have a folder in common, one dies and comes again: each has its socket, and what the dead one left is gone.
func TestControlDirOfSeveralDaemons(t *testing.T) {
	base := sharedFolder(t, "a", "b")
	folder := filepath.Join(base, "control")
	a := startDaemon(t, filepath.Join(base, "a"), "--control-dir", folder)
	b := startDaemon(t, filepath.Join(base, "b"), "--control-dir", folder)
	wantSocket(t, a.dir, folder)
	wantSocket(t, b.dir, folder)
	must(t, a.cmd.Process.Kill())
	<-a.ended
	if n := sockets(t, folder); len(n) != 2 {
		t.Errorf("after the kill: %v", n)
	}
	again := startDaemon(t, a.dir, "--control-dir", folder)
	wantSocket(t, again.dir, folder)
	wantSocket(t, b.dir, folder)
	if n := sockets(t, folder); len(n) != 2 {
		t.Errorf("after the start: %v", n)
	}
	// doctor finds the socket by the relative link
	if _, found := diagnosis(t, b.dir, b.dir); strings.Contains(found, "socket:") {
		t.Error(found)
	}
	for _, d := range []*daemon{again, b} {
		wantRun(t, exitOK, "", "umount", d.dir)
		d.wantExit(t, exitOK)
	}
	if n := sockets(t, folder); len(n) != 0 {
		t.Errorf("left behind: %v", n)
	}
}

func TestReplaceWithAControlDir(t *testing.T) {
	needBeneath(t)
	base := sharedFolder(t, "mnt")
	folder := filepath.Join(base, "control")
	d := startDaemon(t, filepath.Join(base, "mnt"), "--control-dir", folder)
	fill(t, d.dir, "a")
	second := d.replace(t, "--control-dir", folder)
	d.wantEnd(t)
	wantSocket(t, second.dir, folder)
	if n := sockets(t, folder); len(n) != 1 {
		t.Errorf("after the takeover: %v", n)
	}
	third := second.replace(t)
	second.wantEnd(t)
	if path, err := overmindfs.ControlSocket(third.dir); err != nil || strings.HasPrefix(path, base) {
		t.Errorf("%s, %v", path, err)
	}
	if s, err := readStatus(third.dir); err != nil || s.Entries != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestControlDirThatCannotBe(t *testing.T) {
	base := sharedFolder(t, "mnt", "open")
	must(t, os.Chmod(filepath.Join(base, "open"), 0o777))
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	mount := filepath.Join(base, "mnt")
	t.Cleanup(func() { unmountForGood(t, mount) })
	for folder, want := range map[string]string{
		filepath.Join(base, "open"):                   "others can write into it: chmod go-w",
		filepath.Join(base, strings.Repeat("x", 100)): "an address holds 107",
		mount:                               "hides it",
		filepath.Join(base, "missing", "c"): "no such file or directory",
	} {
		for _, background := range []string{"false", "true"} {
			var errOut strings.Builder
			cmd := command("mount", mount, "--control-dir", folder, "--background="+background)
			cmd.Stderr = &errOut
			must(t, cmd.Start())
			impatience := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			impatience.Stop()
			code, said := cmd.ProcessState.ExitCode(), errOut.String()
			if code != exitFailure || strings.Count(said, "\n") != 1 || !strings.Contains(said, want) || !strings.Contains(said, folder) {
				t.Fatalf("exit %d, %q, want one line with %q", code, said, want)
			}
		}
	}
	wantRun(t, exitUsage, "--fd-passing=off", "mount", mount, "--control-dir", filepath.Join(base, "c"), "--fd-passing=off")
	if n := mounts(t, mount); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}
