package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

// limited makes a memory cgroup, in which the kernel must not have killed anybody when the test ends.
func limited(t *testing.T, limit int64) *fstest.Cgroup {
	t.Helper()
	g, err := fstest.NewCgroup(uint64(limit))
	if err != nil {
		t.Skipf("no memory cgroup can be made here: %v", err)
	}
	t.Cleanup(func() {
		kills, err := g.OOMKills()
		if err != nil || kills > 0 {
			t.Errorf("%d processes were killed for want of memory (%v)", kills, err)
		}
		if err := g.Remove(); err != nil {
			t.Errorf("remove %s: %v", g.Dir, err)
		}
	})
	return g
}

// The budget that was asked for is more than the cgroup of the daemon holds.
func TestCacheNeverOutgrowsTheCgroup(t *testing.T) {
	const limit, size = 512 * mib, 60 * mib
	d := startDaemonIn(t, limited(t, limit), t.TempDir(), "--max-bytes", "8GiB")
	entry := func(n int) fstest.Fill {
		return fstest.Fill{Root: d.dir, ID: fmt.Sprint("e", n), Size: size, Mapped: true}
	}
	for n := range 12 {
		if err := entry(n).Run(); err != nil {
			t.Fatalf("fill %d: %v\n%s", n, err, d.stderr)
		}
	}
	s := waitStatus(t, d.dir, func(overmindfs.Status) bool { return true })
	if s.Evictions[store.ReasonRoom] < 4 || s.Entries < 2 {
		t.Errorf("%d entries, evictions %v", s.Entries, s.Evictions)
	}
	// When all of it is in use there is no room, and that is what a fill hears.
	var clients []*client
	for n := 12 - s.Entries; n < 12; n++ {
		clients = append(clients, startClient(t, fstest.Arena(entry(n).Entry())))
	}
	big := fstest.Fill{Root: d.dir, ID: "big", Size: 400 * mib, Mapped: true}
	if err := big.Stage(); err != unix.ENOSPC && !strings.Contains(fmt.Sprint(err), unix.ENOSPC.Error()) {
		t.Fatalf("a fill of 400 MiB: %v", err)
	}
	must(t, unix.Rmdir(big.Staging()))
	for _, c := range clients {
		c.wantSame(t)
	}
	waitStatus(t, d.dir, func(s overmindfs.Status) bool { return s.Leases == 0 })
	if err := entry(20).Run(); err != nil {
		t.Errorf("after that: %v", err)
	}
	must(t, d.cmd.Process.Signal(unix.SIGTERM))
	d.wantExit(t, exitOK)
	if !strings.Contains(d.stderr.String(), "free memory, ") {
		t.Errorf("the log does not say that memory was short:\n%s", d.stderr)
	}
}

func TestDefaultBudgetIsHalfOfTheCgroup(t *testing.T) {
	const limit = 512 * mib
	d := startDaemonIn(t, limited(t, limit), t.TempDir(), "--max-bytes", "50%")
	s, err := readStatus(d.dir)
	must(t, err)
	if s.Limits.MaxBytes != uint64(limit/2) {
		t.Errorf("%d bytes of %d", s.Limits.MaxBytes, limit)
	}
	must(t, d.cmd.Process.Signal(unix.SIGTERM))
	d.wantExit(t, exitOK)
}

// A process that reads more than the cgroup holds waits for memory that idle entries could give.
func TestMemoryPressureEvicts(t *testing.T) {
	const limit = 320 * mib
	group := limited(t, limit)
	folder := diskFolder(t)
	d := startDaemonIn(t, group, t.TempDir(), "--pressure", "1%")
	s, err := readStatus(d.dir)
	must(t, err)
	if !s.Pressure.Active {
		t.Skipf("no memory pressure is told of: %s", s.Pressure.Reason)
	}
	for n := range 4 {
		must(t, fstest.Fill{Root: d.dir, ID: fmt.Sprint("e", n), Size: 12 * mib, Mapped: true}.Run())
	}
	wantRun(t, exitOK, "", "pin", "--root", d.dir, "e0")

	path := filepath.Join(folder, "big")
	must(t, writeLarge(path, 2*limit))
	walker := command()
	walker.Env = append(os.Environ(), walkEnv+"="+path, "GORACE=atexit_sleep_ms=0")
	must(t, group.Contain(walker))
	in, err := walker.StdinPipe()
	must(t, err)
	must(t, walker.Start())
	waitStatus(t, d.dir, func(s overmindfs.Status) bool { return s.Evictions[store.ReasonPressure] == 3 })
	must(t, in.Close())
	if err := walker.Wait(); err != nil {
		t.Errorf("the process that needed the memory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "pipelines", "e0")); err != nil {
		t.Errorf("the pinned entry: %v", err)
	}
	must(t, d.cmd.Process.Signal(unix.SIGTERM))
	d.wantExit(t, exitOK)
	if !strings.Contains(d.stderr.String(), "reason=pressure") {
		t.Errorf("the log does not give the reason:\n%s", d.stderr)
	}
}

func waitStatus(t *testing.T, root string, ok func(overmindfs.Status) bool) overmindfs.Status {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := readStatus(root)
		must(t, err)
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %+v", s)
		}
	}
}

// diskFolder returns a folder whose files the kernel can drop from memory.
func diskFolder(t *testing.T) string {
	t.Helper()
	here, err := os.Getwd()
	must(t, err)
	for _, base := range []string{os.TempDir(), here} {
		var st unix.Statfs_t
		must(t, unix.Statfs(base, &st))
		if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(base, "overmind-test-")
		if err == nil {
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			return dir
		}
	}
	t.Skip("no folder on a disk")
	return ""
}

// writeLarge writes a file and lets its pages be dropped from memory, so that they count for who reads them next.
func writeLarge(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := io.CopyN(f, zeros{}, size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// walk reads one byte of every page, again and again.
func walk(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var sum byte
	for off := 0; ; off = (off + os.Getpagesize()) % len(mem) {
		sum += mem[off]
		select {
		case <-ended:
			fmt.Println(sum)
			return nil
		default:
		}
	}
}
