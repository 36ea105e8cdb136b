package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"overmind-fs/schema/schematest"
)

// injector fails one call of one function, and counts them.
type injector struct {
	err   error
	nth   int // the call that fails, from 1; 0: none
	calls int
}

func (in *injector) fails() bool {
	in.calls++
	return in.calls == in.nth
}

// injections put an injector in front of each function of OS.
var injections = map[string]func(*OS, *injector){
	"memfd_create": func(o *OS, in *injector) {
		real := o.MemfdCreate
		o.MemfdCreate = func(name string, flags int) (int, error) {
			if in.fails() {
				return -1, in.err
			}
			return real(name, flags)
		}
	},
	"ftruncate": func(o *OS, in *injector) {
		real := o.Ftruncate
		o.Ftruncate = func(fd int, size int64) error {
			if in.fails() {
				return in.err
			}
			return real(fd, size)
		}
	},
	"fallocate": func(o *OS, in *injector) {
		real := o.Fallocate
		o.Fallocate = func(fd int, mode uint32, off, n int64) error {
			if in.fails() {
				return in.err
			}
			return real(fd, mode, off, n)
		}
	},
	"pwrite": func(o *OS, in *injector) {
		real := o.Pwrite
		o.Pwrite = func(fd int, data []byte, off int64) (int, error) {
			if in.fails() {
				return 0, in.err
			}
			return real(fd, data, off)
		}
	},
	"mmap": func(o *OS, in *injector) {
		real := o.Mmap
		o.Mmap = func(fd int, off int64, at unsafe.Pointer, n uintptr, prot, flags int) (unsafe.Pointer, error) {
			if in.fails() {
				return nil, in.err
			}
			return real(fd, off, at, n, prot, flags)
		}
	},
	"munmap": func(o *OS, in *injector) {
		real := o.Munmap
		o.Munmap = func(at unsafe.Pointer, n uintptr) error {
			if err := real(at, n); err != nil || !in.fails() {
				return err
			}
			return in.err
		}
	},
	"madvise": func(o *OS, in *injector) { // populate and collapse
		real := o.Madvise
		o.Madvise = func(b []byte, advice int) error {
			if in.fails() {
				return in.err
			}
			return real(b, advice)
		}
	},
	"add seals": func(o *OS, in *injector) {
		real := o.AddSeals
		o.AddSeals = func(fd, seals int) error {
			if in.fails() {
				return in.err
			}
			return real(fd, seals)
		}
	},
	"get seals": func(o *OS, in *injector) {
		real := o.GetSeals
		o.GetSeals = func(fd int) (int, error) {
			if in.fails() {
				return 0, in.err
			}
			return real(fd)
		}
	},
	"reopen": func(o *OS, in *injector) {
		real := o.Reopen
		o.Reopen = func(fd, mode int) (int, error) {
			if in.fails() {
				return -1, in.err
			}
			return real(fd, mode)
		}
	},
	"headroom": func(o *OS, in *injector) {
		real := o.Headroom
		o.Headroom = func() (uint64, error) {
			if in.fails() {
				return 0, in.err
			}
			return real()
		}
	},
}

// life is a whole fill and a read of it. It returns the first error, with everything that it opened closed.
func (fx *fixture) life(id string) error {
	const size = 5*mib + 123 // huge pages and a tail
	e, err := fx.Begin(id, alice)
	if err != nil {
		return err
	}
	if err := e.MakeTensors(alice); err != nil {
		return err
	}
	f, h, err := e.CreateArena("model.safetensors", alice)
	if err != nil {
		return err
	}
	defer h.Release()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		StructureName: make([]byte, 100), ManifestName: schematest.Encode(manifestFor(id, size)),
	} {
		blob, bh, err := e.CreateBlob(name, alice)
		if err != nil {
			return err
		}
		defer bh.Release()
		if err := blob.Truncate(uint64(len(data))); err != nil {
			return err
		}
		if _, err := bh.WriteAt(data, 0); err != nil {
			return err
		}
		bh.Release()
	}
	h.Release()
	if err := fx.Commit(context.Background(), id, alice, false); err != nil {
		return err
	}
	fd, err := f.Reopen(false, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Every call of every function fails once, with every error. Either nobody notices, or the error comes out and the next
// try succeeds; at no time is half an entry there, a byte counted that is not, or a descriptor left.
func TestEveryCallFailsOnce(t *testing.T) {
	noticed := map[string]bool{}
	for name, inject := range injections {
		for _, errno := range []unix.Errno{unix.ENOSPC, unix.ENOMEM, unix.EMFILE, unix.EPERM, unix.EIO} {
			t.Run(fmt.Sprint(name, " ", unix.ErrnoName(errno)), func(t *testing.T) {
				for nth, calls := 1, 1; nth <= calls; nth++ {
					in := &injector{err: errno, nth: nth}
					fx := newFixture(t, 64*mib, func(o *Options) {
						o.HugePages = true
						inject(&o.OS, in)
					})
					err := fx.life("a")
					calls = in.calls
					if err != nil {
						noticed[name] = true
						fx.recovers(err, errno)
					}
					fx.wantWhole("a")
				}
			})
		}
	}
	// Huge pages can be done without, what is unmapped is gone or never was, and headroom is a precaution. Whether
	// fallocate is called depends on the kernel.
	for name, want := range map[string]bool{
		"memfd_create": true, "ftruncate": true, "pwrite": true, "add seals": true, "get seals": true, "reopen": true,
		"mmap": false, "munmap": false, "madvise": false, "headroom": false,
	} {
		if noticed[name] != want {
			t.Errorf("%s: noticed %v", name, noticed[name])
		}
	}
}

// The same for the ways that only a machine without huge pages goes.
func TestFallocateFailsOnce(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.ENOMEM, unix.EIO} {
		in := &injector{err: errno, nth: 1}
		fx := newFixture(t, 64*mib, func(o *Options) { injections["fallocate"](&o.OS, in) })
		err := fx.life("a")
		if err == nil {
			t.Fatal("no error")
		}
		fx.recovers(err, errno)
		fx.wantWhole("a")
	}
}

// recovers checks what a failed life leaves, and does it again.
func (fx *fixture) recovers(err error, want unix.Errno) {
	fx.t.Helper()
	if !errors.Is(err, want) {
		fx.t.Errorf("got %v, want %v", err, want)
	}
	must(fx.t, fx.Check())
	if e, err := fx.Published("a"); err == nil {
		fx.wantWhole(e.ID()) // the fault came after the commit
		return
	}
	must(fx.t, fx.Drop("a", alice))
	if s := fx.Stats(); s.StagingBytes+s.CachedBytes+s.DrainingBytes != 0 {
		fx.t.Errorf("stats %+v", s)
	}
	must(fx.t, fx.life("a"))
}

// wantWhole checks that an entry is published with all its bytes.
func (fx *fixture) wantWhole(id string) {
	fx.t.Helper()
	must(fx.t, fx.Check())
	e, err := fx.Published(id)
	must(fx.t, err)
	h := fx.lease(e, 1)
	defer h.Release()
	if got := allocated(fx.t, h.FD()); got < 5*mib {
		fx.t.Errorf("%d bytes are allocated", got)
	}
	if len(fx.StagingIDs()) != 0 {
		fx.t.Error("a staging is left")
	}
}
