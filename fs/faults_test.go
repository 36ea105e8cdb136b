package fs_test

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

// What the kernel refuses to the daemon is what the client of a fill hears; the next fill works.
func TestFaultsReachTheClient(t *testing.T) {
	for name, c := range map[string]struct {
		inject func(*store.OS, error)
		errno  syscall.Errno
	}{
		"memfd":              {func(o *store.OS, err error) { o.MemfdCreate = func(string, int) (int, error) { return -1, err } }, unix.EMFILE},
		"size":               {func(o *store.OS, err error) { o.Ftruncate = func(int, int64) error { return err } }, unix.ENOMEM},
		"memory":             {refuseMemory, unix.ENOSPC},
		"seal":               {func(o *store.OS, err error) { o.AddSeals = func(int, int) error { return err } }, unix.EPERM},
		"panic in ftruncate": {func(o *store.OS, _ error) { o.Ftruncate = func(int, int64) error { panic("on purpose") } }, unix.EIO},
		"panic in commit":    {func(o *store.OS, _ error) { o.GetSeals = func(int) (int, error) { panic("on purpose") } }, unix.EIO},
		"no seals":           {func(o *store.OS, _ error) { o.GetSeals = func(int) (int, error) { return 0, nil } }, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			// The functions are those of the store's own copy, so they look at a switch.
			broken, working := store.NewOS(), store.NewOS()
			c.inject(&broken, c.errno)
			var fault atomic.Bool
			fault.Store(true)
			m := testMount(t, func(_ *overmindfs.Options, o *store.Options) { o.OS = either(&fault, broken, working) })
			f := fstest.Fill{Root: m.dir, ID: "a", Size: 3 * mib}
			wantErrno(t, f.Run(), c.errno)
			if _, err := os.Stat(f.Entry()); !os.IsNotExist(err) {
				t.Errorf("an entry is there: %v", err)
			}
			must(t, unix.Rmdir(f.Staging()))
			eventually(t, "memory is back", func() bool {
				s := m.store.Stats()
				return s.StagingBytes+s.CachedBytes+s.DrainingBytes == 0
			})
			fault.Store(false)
			must(t, f.Run())
		})
	}
}

func refuseMemory(o *store.OS, err error) {
	o.Madvise = func([]byte, int) error { return err }
	o.Fallocate = func(int, uint32, int64, int64) error { return err }
}

// either is broken while fault is set.
func either(fault *atomic.Bool, broken, working store.OS) store.OS {
	pick := func() *store.OS {
		if fault.Load() {
			return &broken
		}
		return &working
	}
	both := working
	both.MemfdCreate = func(name string, flags int) (int, error) { return pick().MemfdCreate(name, flags) }
	both.Ftruncate = func(fd int, size int64) error { return pick().Ftruncate(fd, size) }
	both.Fallocate = func(fd int, mode uint32, off, n int64) error { return pick().Fallocate(fd, mode, off, n) }
	both.Madvise = func(b []byte, advice int) error { return pick().Madvise(b, advice) }
	both.AddSeals = func(fd, seals int) error { return pick().AddSeals(fd, seals) }
	both.GetSeals = func(fd int) (int, error) { return pick().GetSeals(fd) }
	return both
}
