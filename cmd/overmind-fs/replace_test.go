package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// needBeneath skips where the kernel or the privileges do not allow a takeover.
func needBeneath(t *testing.T) {
	t.Helper()
	var uts unix.Utsname
	must(t, unix.Uname(&uts))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor)
	must(t, err)
	if os.Geteuid() != 0 || major < 6 || major == 6 && minor < 5 {
		t.Skip("a takeover needs root and Linux 6.5")
	}
}

// replace starts a daemon with --replace and waits until it has taken over.
func (d *daemon) replace(t *testing.T, args ...string) *daemon {
	t.Helper()
	pid := d.cmd.Process.Pid
	n := startDaemon(t, d.dir, append([]string{"--replace"}, args...)...)
	eventually(t, "the new daemon serves", func() bool {
		s, err := readStatus(d.dir)
		must(t, err)
		return s.PID != pid
	})
	return n
}

// wantEnd waits for the end of a daemon whose mount another one has.
func (d *daemon) wantEnd(t *testing.T) {
	t.Helper()
	select {
	case err := <-d.ended:
		if err != nil {
			t.Errorf("%v\n%s", err, d.stderr)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the old daemon does not end\n%s", d.stderr)
	}
}

func mounts(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return strings.Count(string(text), " "+dir+" ")
}

func getattr(t *testing.T, path, name string) string {
	t.Helper()
	v, err := attribute(path, name)
	must(t, err)
	return v
}

// memfds counts the memfds of entries that a process has open.
func memfds(t *testing.T, pid int) int {
	t.Helper()
	n, err := fstest.Memfds(pid)
	must(t, err)
	return n
}

// Entries, pins, hits and owners, open files, mappings and a fill under way all outlive the daemon that had them.
func TestReplace(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir())
	a, b := fill(t, d.dir, "a"), fill(t, d.dir, "b")
	wantRun(t, exitOK, "", "pin", "--root", d.dir, "b")
	_, err := os.ReadFile(filepath.Join(a.Entry(), "structure.pkl"))
	must(t, err)
	var before, after unix.Stat_t
	must(t, unix.Stat(fstest.Arena(a.Entry()), &before))
	mapped := startClient(t, fstest.Arena(a.Entry()))
	open := startClientAs(t, openEnv, filepath.Join(b.Entry(), "storages", "0.all"))
	looking := startClientAs(t, lookEnv, b.Entry())
	f := fstest.Fill{Root: d.dir, ID: "c", Size: 3 * mib}
	half := startFill(t, f)

	n := d.replace(t)
	if got := mounts(t, d.dir); got != 1 {
		t.Errorf("%d mounts", got)
	}
	for _, c := range []struct{ path, name, want string }{
		{a.Entry(), overmindfs.AttrHits, "1"}, {a.Entry(), overmindfs.AttrPinned, "0"}, {b.Entry(), overmindfs.AttrPinned, "1"},
	} {
		if got := getattr(t, c.path, c.name); got != c.want {
			t.Errorf("%s of %s is %s, want %s", c.name, c.path, got, c.want)
		}
	}
	got, err := os.ReadFile(fstest.Arena(a.Entry()))
	if err != nil || !bytes.Equal(got, fstest.Content(3*mib)) {
		t.Errorf("other bytes, %v", err)
	}
	must(t, unix.Stat(fstest.Arena(a.Entry()), &after))
	if before.Uid != after.Uid || before.Ino != after.Ino || before.Dev == after.Dev {
		t.Errorf("before %+v, after %+v", before, after)
	}

	half.finish(t)
	if got, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil || !bytes.Equal(got, fstest.Content(f.Size)) {
		t.Errorf("the fill under way: %d bytes, %v", len(got), err)
	}
	looking.wantSame(t)
	mapped.wantSame(t)
	if !running(d.cmd.Process.Pid) {
		t.Error("the old daemon ended with a file open")
	}
	open.wantSame(t)
	d.wantEnd(t)
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "--all", "--force")
	eventually(t, "all memory is let go", func() bool { return memfds(t, n.cmd.Process.Pid) == 0 })
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	n.wantExit(t, exitOK)
}

// What entries and fills share, the new daemon has once.
func TestReplaceKeepsSharedArenas(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir())
	a := fill(t, d.dir, "a")
	for _, id := range []string{"b", "c"} {
		must(t, fstest.Fill{Root: d.dir, ID: id, Size: a.Size, From: a.Entry()}.Stage())
	}
	b := fstest.Fill{Root: d.dir, ID: "b"}
	must(t, b.Commit())
	n := d.replace(t)
	d.wantEnd(t)
	wantShared(t, d.dir, uint64(a.Size))
	wantRun(t, exitOK, "1 evicted, 2", "evict", "--root", d.dir, "a") // KiB: what the others do not have
	must(t, fstest.Fill{Root: d.dir, ID: "c"}.Commit())
	wantShared(t, d.dir, uint64(a.Size))
	for _, id := range []string{"b", "c"} {
		path := fstest.Arena(fstest.Fill{Root: d.dir, ID: id}.Entry())
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, fstest.Content(a.Size)) {
			t.Errorf("%s: %d bytes, %v", id, len(got), err)
		}
	}
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "--all")
	eventually(t, "all memory is let go", func() bool { return memfds(t, n.cmd.Process.Pid) == 0 })
}

// A filler that dies after the takeover leaves nothing behind, as without one.
func TestFillerDiesAfterReplace(t *testing.T) {
	needBeneath(t)
	for name, env := range map[string]string{"staged before": fillEnv, "staged after": lateEnv} {
		t.Run(name, func(t *testing.T) {
			d := startDaemon(t, t.TempDir())
			c := startClientAs(t, env, d.dir)
			n := d.replace(t)
			_, err := c.in.Write([]byte("x"))
			must(t, err)
			staging := filepath.Join(d.dir, "staging", "dying")
			eventually(t, "all is staged", func() bool {
				_, err := os.Stat(filepath.Join(staging, "manifest"))
				return err == nil
			})
			must(t, c.cmd.Process.Kill())
			_ = c.cmd.Wait()
			eventually(t, "the staging is dropped", func() bool {
				_, err := os.Stat(staging)
				return errors.Is(err, os.ErrNotExist)
			})
			d.wantEnd(t)
			eventually(t, "all memory is let go", func() bool { return memfds(t, n.cmd.Process.Pid) == 0 })
		})
	}
}

// Signals reach a replaced daemon too, and it does not unmount its successor.
func TestSignalAfterReplace(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir())
	f := fill(t, d.dir, "a")
	c := startClientAs(t, openEnv, fstest.Arena(f.Entry()))
	n := d.replace(t)
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wantEnd(t)
	if h, err := overmindfs.ProbeMount(d.dir); h != overmindfs.AliveMount {
		t.Errorf("health %d, %v", h, err)
	}
	c.wantSame(t)
	// Once more, and back.
	n2 := n.replace(t)
	n.wantEnd(t)
	if _, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil {
		t.Error(err)
	}
	must(t, n2.cmd.Process.Signal(syscall.SIGTERM))
	n2.wantExit(t, exitOK)
}

// Killed at any time before it has taken over, a new daemon changes nothing.
func TestReplaceKilled(t *testing.T) {
	needBeneath(t)
	d := startDaemon(t, t.TempDir())
	f := fill(t, d.dir, "a")
	for wait := time.Duration(0); wait < 60*time.Millisecond; wait += 6 * time.Millisecond {
		n := command("mount", "--replace", d.dir)
		must(t, n.Start())
		time.Sleep(wait)
		must(t, n.Process.Kill())
		_ = n.Wait()
		if err := d.servesAll(t, f); err != nil {
			if h, _ := overmindfs.ProbeMount(d.dir); h == overmindfs.DeadMount {
				d.wantEnd(t) // it was quicker
				return
			}
			t.Fatalf("after %v: %v", wait, err)
		}
	}
}

// servesAll says whether an entry can be read and a fill begun, in one mount.
func (d *daemon) servesAll(t *testing.T, f fstest.Fill) error {
	t.Helper()
	if got, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil || !bytes.Equal(got, fstest.Content(f.Size)) {
		return fmt.Errorf("%d bytes, %w", len(got), err)
	}
	staging := filepath.Join(d.dir, "staging", "x")
	if err := errors.Join(unix.Mkdir(staging, 0o755), unix.Rmdir(staging)); err != nil {
		return err
	}
	if got := mounts(t, d.dir); got != 1 {
		return fmt.Errorf("%d mounts", got)
	}
	return nil
}
