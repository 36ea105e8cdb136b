package store

import (
	"context"
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errInjected = unix.EIO

func allocated(t *testing.T, fd int) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	return uint64(st.Blocks) * 512
}

// Each system call that allocates fails once. The error comes out, no byte stays counted or allocated, and the same
// arena can be allocated when the fault is over. Huge pages are optional, so their faults must not come out at all.
func TestFaultsWhileAllocating(t *testing.T) {
	for name, c := range map[string]struct {
		inject   func(*OS)
		survives bool
	}{
		"ftruncate": {inject: func(o *OS) { o.Ftruncate = func(int, int64) error { return errInjected } }},
		"fallocate and collapse": {inject: func(o *OS) {
			o.Madvise = func([]byte, int) error { return errInjected }
			o.Fallocate = func(int, uint32, int64, int64) error { return errInjected }
		}},
		"seal": {inject: func(o *OS) { o.AddSeals = func(int, int) error { return errInjected } }},
		"mmap": {survives: true, inject: func(o *OS) {
			o.Mmap = func(int, int64, unsafe.Pointer, uintptr, int, int) (unsafe.Pointer, error) {
				return nil, errInjected
			}
		}},
		"second mmap": {survives: true, inject: func(o *OS) {
			real := o.Mmap
			o.Mmap = func(fd int, off int64, at unsafe.Pointer, n uintptr, prot, flags int) (unsafe.Pointer, error) {
				if fd >= 0 {
					return nil, errInjected
				}
				return real(fd, off, at, n, prot, flags)
			}
		}},
		"madvise": {survives: true, inject: func(o *OS) { o.Madvise = func([]byte, int) error { return errInjected } }},
		"collapse": {survives: true, inject: func(o *OS) {
			real := o.Madvise
			o.Madvise = func(b []byte, advice int) error {
				if advice == unix.MADV_COLLAPSE {
					return unix.EAGAIN
				}
				return real(b, advice)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t, 64*mib, func(o *Options) { o.HugePages = true })
			e, err := fx.Begin("a", alice)
			must(t, err)
			must(t, e.MakeTensors(alice))
			f, h, err := e.CreateArena("model.safetensors", alice)
			must(t, err)
			defer h.Release()
			real := *fx.os
			c.inject(fx.os)
			err = f.Truncate(5 * mib)
			*fx.os = real
			if c.survives {
				must(t, err)
				if got := allocated(t, h.FD()); got < 5*mib {
					t.Errorf("%d bytes are allocated", got)
				}
				return
			}
			if !errors.Is(err, errInjected) {
				t.Fatalf("got %v", err)
			}
			if s := fx.Stats(); s.StagingBytes != 0 {
				t.Errorf("stats %+v", s)
			}
			if got := allocated(t, h.FD()); name != "ftruncate" && got != 0 {
				t.Errorf("%d bytes are still allocated", got)
			}
			must(t, f.Truncate(5*mib))
		})
	}
}

func TestFaultInMemfdCreate(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, err := fx.Begin("a", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	real := fx.os.MemfdCreate
	fx.os.MemfdCreate = func(string, int) (int, error) { return -1, unix.EMFILE }
	_, _, err = e.CreateArena("model.safetensors", alice)
	wantErr(t, err, unix.EMFILE)
	_, _, err = e.CreateBlob(ManifestName, alice)
	wantErr(t, err, unix.EMFILE)
	if len(e.FileNames("")) != 0 || len(e.FileNames(TensorsName)) != 0 {
		t.Error("half a file is there")
	}
	// An older kernel does not know MFD_NOEXEC_SEAL.
	fx.os.MemfdCreate = func(name string, flags int) (int, error) {
		if flags&unix.MFD_NOEXEC_SEAL != 0 {
			return -1, unix.EINVAL
		}
		return real(name, flags)
	}
	_, h, err := e.CreateArena("model.safetensors", alice)
	must(t, err)
	h.Release()
}

// Each fault at commit leaves the staging as it was; nothing is published.
func TestFaultsWhileSealing(t *testing.T) {
	for name, c := range map[string]struct {
		inject func(*OS)
		want   error
	}{
		"add":  {func(o *OS) { o.AddSeals = func(int, int) error { return errInjected } }, errInjected},
		"read": {func(o *OS) { o.GetSeals = func(int) (int, error) { return 0, errInjected } }, errInjected},
		"not held": {func(o *OS) {
			o.AddSeals = func(int, int) error { return nil }
		}, ErrSeals},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t, 64*mib)
			old := fx.fill("a", mib, alice)
			e, h := fx.stage("a", 2*mib, alice)
			h.Release()
			real := *fx.os
			c.inject(fx.os)
			err := fx.Commit(context.Background(), "a", alice, false)
			*fx.os = real
			wantErr(t, err, c.want)
			if e.State() != Staging || old.State() != Published {
				t.Errorf("states %d and %d", e.State(), old.State())
			}
			must(t, fx.Commit(context.Background(), "a", alice, false))
		})
	}
}

// Kernels before 6.3 refuse F_SEAL_EXEC; the base seals are set all the same.
func TestSealsWithoutExec(t *testing.T) {
	fx := newFixture(t, 64*mib)
	_, h := fx.stage("a", mib, alice)
	h.Release()
	real := fx.os.AddSeals
	fx.os.AddSeals = func(fd, seals int) error {
		if seals&unix.F_SEAL_EXEC != 0 {
			return unix.EINVAL
		}
		return real(fd, seals)
	}
	must(t, fx.Commit(context.Background(), "a", alice, false))
}
