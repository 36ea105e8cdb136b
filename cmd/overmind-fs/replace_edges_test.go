package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
	"overmind-fs/fs/handover"
	"overmind-fs/fs/store"
)

// A new daemon that dies, hangs or cannot mount, at the worst moment: all changes that waited go on in the old one.
func TestFailedReplaceLeavesTheOldOne(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir())
	f := fill(t, d.dir, "a")
	socket, err := os.Readlink(filepath.Join(d.dir, "control"))
	must(t, err)
	into := store.New(store.Options{OS: store.NewOS()})
	defer into.Close()
	for name, end := range map[string]func(*handover.Takeover) error{
		"it dies":  func(h *handover.Takeover) error { h.Close(); return handover.ErrRefused },
		"it hangs": func(*handover.Takeover) error { return handover.ErrRefused },
		"its mount hangs": func(h *handover.Takeover) error {
			mount, fuse := unservedMount(t)
			defer func() { _, _ = unix.Close(mount), unix.Close(fuse) }()
			return h.Switch(mount)
		},
		"it has no mount": func(h *handover.Takeover) error {
			fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			defer func() { _ = unix.Close(fd) }()
			return h.Switch(fd)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := handover.Take(socket, into, slog.New(slog.DiscardHandler))
			must(t, err)
			defer h.Close()
			all, err := h.Collect(context.Background())
			must(t, err)
			if len(all) != 1 || all[0].ID != "a" {
				t.Errorf("%v", all)
			}
			for _, a := range all {
				a.Close()
			}
			made := make(chan error, 1)
			go func() { made <- unix.Mkdir(filepath.Join(d.dir, "staging", "x"), 0o755) }()
			select {
			case err := <-made:
				t.Errorf("mkdir did not wait: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			if err := end(h); !errors.Is(err, handover.ErrRefused) {
				t.Error(err)
			}
			select {
			case err := <-made:
				must(t, err)
			case <-time.After(30 * time.Second):
				must(t, d.cmd.Process.Kill())
				t.Fatal("mkdir waits for ever")
			}
			must(t, unix.Rmdir(filepath.Join(d.dir, "staging", "x")))
			if _, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil {
				t.Error(err)
			}
		})
	}
	d.replace(t) // and the next one succeeds
	d.wantEnd(t)
}

func TestReplaceRefuses(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir(), "--fd-passing", "off")
	wantRun(t, exitFailure, "--fd-passing=off", "mount", "--replace", d.dir)
	waitAlive(t, d.dir)
	wantRun(t, exitFailure, "another file system (proc)", "mount", "--replace", "/proc")
	wantRun(t, exitFailure, "no such folder", "mount", "--replace", filepath.Join(t.TempDir(), "missing"))
}

// Without a daemon --replace mounts, and by a symbolic link it finds the mount.
func TestReplaceNothingAndByLink(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir(), "--replace")
	fill(t, d.dir, "a")
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(d.dir, link))
	log := logFile(t)
	wantRun(t, exitOK, "mounted "+link, "mount", "--replace", "--background", "--log-file", log, link)
	d.wantEnd(t)
	// The old one has nothing to do any more, and yet answers before it ends.
	if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), "WARN") {
		t.Errorf("%v\n%s", err, text)
	}
	if ids, err := entryIDs(d.dir); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
	wantRun(t, exitOK, "", "umount", d.dir)
	if got := mounts(t, d.dir); got != 0 {
		t.Errorf("%d mounts", got)
	}
}

// The metrics of the new daemon are at the port of the old one, which is still there for what is open.
func TestReplaceKeepsTheMetricsPort(t *testing.T) {
	needBeneath(t)
	log := logFile(t)
	d := startDaemon(t, t.TempDir(), "--metrics-addr", "127.0.0.1:0", "--log-file", log)
	f := fill(t, d.dir, "a")
	open := startClientAs(t, openEnv, fstest.Arena(f.Entry()))
	url := metricsURL(t, log)
	addr := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	n := d.replace(t, "--metrics-addr", addr, "--ttl", "1h")
	eventually(t, "the new daemon alone answers", func() bool {
		for range 20 {
			r, err := http.Get(url)
			if err != nil {
				return false
			}
			text, err := io.ReadAll(r.Body)
			must(t, errors.Join(err, r.Body.Close()))
			if !strings.Contains(string(text), "\novermind_ttl_seconds 3600") {
				return false
			}
		}
		return true
	})
	if !running(d.cmd.Process.Pid) {
		t.Error("the old daemon ended with a file open")
	}
	open.wantSame(t)
	d.wantEnd(t)
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	n.wantExit(t, exitOK)
}

// Under systemd all mounts are shared: the new mount has to go beneath each copy of the old one.
func TestReplaceInSharedMounts(t *testing.T) {
	needBeneath(t)
	base := t.TempDir()
	first, second := filepath.Join(base, "1"), filepath.Join(base, "2")
	for _, dir := range []string{first, second} {
		must(t, os.Mkdir(dir, 0o755))
		must(t, unix.Mount(first, dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unmountForGood(t, dir) })
		must(t, unix.Mount("", first, "", unix.MS_SHARED, ""))
	}
	dir, copied := filepath.Join(first, "m"), filepath.Join(second, "m")
	must(t, os.Mkdir(dir, 0o755))
	d := startDaemon(t, dir)
	f := fill(t, dir, "a")
	n := d.replace(t)
	d.wantEnd(t)
	if here, there := mounts(t, dir), mounts(t, copied); here != 1 || there != 1 {
		t.Errorf("%d and %d mounts", here, there)
	}
	f.Root = copied
	if _, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil {
		t.Error(err)
	}
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	n.wantExit(t, exitOK)
	if got := mounts(t, copied); got != 0 {
		t.Errorf("%d mounts", got)
	}
}
