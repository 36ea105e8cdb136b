package store

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"
)

func flagsOf(t *testing.T, fd int) int {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	must(t, err)
	return flags & unix.O_ACCMODE
}

// The descriptor of a published arena can only read, whatever its receiver tries.
func TestReopenPublished(t *testing.T) {
	fx := newFixture(t, 64*mib)
	f, err := fx.fill("a", mib, alice).File(TensorsName, "model.safetensors")
	must(t, err)
	_, err = f.Reopen(true, 0)
	wantErr(t, err, ErrReadOnly)
	fd, err := f.Reopen(false, 0)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	if flagsOf(t, fd) != unix.O_RDONLY {
		t.Error("it can write")
	}
	_, err = unix.Pwrite(fd, []byte("x"), 0)
	wantErr(t, err, unix.EBADF)
	_, err = unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	wantErr(t, err, unix.EACCES)
	again, err := fx.os.Reopen(fd, unix.O_RDWR) // as any process can that has it
	must(t, err)
	defer func() { _ = unix.Close(again) }()
	_, err = unix.Pwrite(again, []byte("x"), 0)
	wantErr(t, err, unix.EPERM)
	_, err = unix.Mmap(again, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	wantErr(t, err, unix.EPERM)
	wantErr(t, unix.Ftruncate(again, 1), unix.EPERM)
	if n := fx.Stats().Leases; n != 0 {
		t.Errorf("%d leases", n) // the file in the mount is the lease
	}
}

func TestReopenStaged(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, err := fx.Begin("a", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	f, h, err := e.CreateArena("model.safetensors", alice)
	must(t, err)
	_, err = f.Reopen(true, 0)
	wantErr(t, err, ErrIncomplete) // it could grow past the budget
	must(t, f.Truncate(mib))
	_, err = f.Reopen(false, 0)
	wantErr(t, err, ErrNotFound)
	fd, err := f.Reopen(true, 0)
	must(t, err)
	if flagsOf(t, fd) != unix.O_RDWR {
		t.Error("it cannot write")
	}
	_, err = unix.Pwrite(fd, []byte("x"), 0)
	must(t, err)
	wantErr(t, unix.Ftruncate(fd, int64(2*mib)), unix.EPERM)
	mem, err := unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	h.Release()
	write(t, e, StructureName, make([]byte, 100))
	write(t, e, ManifestName, encodedManifest("a", mib))
	// The mapping of what was handed out holds a commit up, its descriptor does not, and is good for nothing afterwards.
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrBusy)
	must(t, unix.Munmap(mem))
	must(t, fx.Commit(context.Background(), "a", alice, false))
	_, err = unix.Pwrite(fd, []byte("y"), 0)
	wantErr(t, err, unix.EPERM)
	must(t, unix.Close(fd))
}

func TestReopenOnlyArenasThatAreThere(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	blob, err := e.File("", ManifestName)
	must(t, err)
	_, err = blob.Reopen(false, 0)
	wantErr(t, err, ErrIncomplete)
	f, err := e.File(TensorsName, "model.safetensors")
	must(t, err)
	h := fx.lease(e, 1)
	defer h.Release()
	must(t, fx.Evict("a", alice))
	_, err = f.Reopen(false, 0)
	wantErr(t, err, ErrNotFound)
}

func TestReopenFails(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) { o.OS.Reopen = func(int, int) (int, error) { return -1, errInjected } })
	f, err := fx.fill("a", mib, alice).File(TensorsName, "model.safetensors")
	must(t, err)
	_, err = f.Reopen(false, 0)
	wantErr(t, err, errInjected)
	wantErr(t, ProbeReopen(*fx.os), errInjected)
	must(t, ProbeReopen(NewOS()))
}

func TestJSONSize(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, h := fx.stage("a", mib, alice)
	if n := e.JSONSize(); n != 0 {
		t.Errorf("a staging has a manifest.json of %d bytes", n)
	}
	h.Release()
	must(t, fx.Commit(context.Background(), "a", alice, false))
	text, err := e.Manifest().JSON()
	must(t, err)
	if n := e.JSONSize(); n != uint64(len(text)) {
		t.Errorf("%d bytes, has %d", n, len(text))
	}
}
