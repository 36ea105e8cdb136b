package fs_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

// mountCycle mounts, fills, reads and unmounts.
func mountCycle(dir string) error {
	so := store.Options{MaxBytes: uint64(16 * mib), OS: store.NewOS()}
	s := store.New(so)
	defer s.Close()
	m, err := overmindfs.New(overmindfs.Options{
		Dir: dir, Store: s, Version: "test", Logger: slog.New(slog.DiscardHandler), Passthrough: true, FDPassing: true,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	})
	if err != nil {
		return err
	}
	err = m.WaitMount()
	f := fstest.Fill{Root: dir, ID: "a", Size: 64 << 10}
	if err == nil {
		err = f.Run()
	}
	if err == nil {
		_, err = os.ReadFile(fstest.Arena(f.Entry()))
	}
	// A release that comes after the unmount is lost; that memory goes with the process.
	for deadline := time.Now().Add(10 * time.Second); s.Stats().Leases > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	_, unmountErr := m.Unmount()
	return errors.Join(err, unmountErr)
}

// Mounts come and go, eight at a time, and nothing of them stays.
func TestMountCycles(t *testing.T) {
	needFUSE(t)
	const cycles, atATime = 200, 8
	base, err := os.MkdirTemp("", "overmind-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	one := func(n int) error {
		dir := fmt.Sprint(base, "/", n)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mountCycle(dir); err != nil {
			return fmt.Errorf("cycle %d: %w", n, err)
		}
		return unix.Rmdir(dir) // fails while something is mounted there
	}
	must(t, one(-1)) // what is made once
	fds, goroutines := openFDs(t), runtime.NumGoroutine()
	var running sync.WaitGroup
	for k := range atATime {
		running.Go(func() {
			for n := k; n < cycles; n += atATime {
				if err := one(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	eventually(t, "descriptors closed", func() bool { return openFDs(t) <= fds })
}
