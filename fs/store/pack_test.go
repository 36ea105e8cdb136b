package store

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/schema/schematest"
)

// stageWith makes a complete staging with that structure.pkl.
func (fx *fixture) stageWith(id string, structure []byte) *Entry {
	fx.t.Helper()
	e, h := fx.stage(id, kib, alice)
	h.Release()
	must(fx.t, e.Unlink("", StructureName, alice))
	must(fx.t, e.Unlink("", ManifestName, alice))
	write(fx.t, e, StructureName, structure)
	m := manifestFor(id, kib)
	m.StructureNbytes = uint64(len(structure))
	write(fx.t, e, ManifestName, schematest.Encode(m))
	return e
}

func (fx *fixture) fillWith(id string, structure []byte) *Entry {
	fx.t.Helper()
	e := fx.stageWith(id, structure)
	must(fx.t, fx.Commit(context.Background(), id, alice, false))
	return e
}

func (fx *fixture) blob(e *Entry, name string) *File {
	fx.t.Helper()
	f, err := e.File("", name)
	must(fx.t, err)
	return f
}

// content reads a file as the daemon does.
func content(t *testing.T, f *File) []byte {
	t.Helper()
	h, err := f.Open(false, 1)
	must(t, err)
	defer h.Release()
	data := make([]byte, f.Size())
	must(t, readFull(h.FD(), data, h.Base()))
	return data
}

func filled(n int, with byte) []byte { return bytes.Repeat([]byte{with}, n) }

// debugLog shows what is logged at level debug.
func debugLog(log *bytes.Buffer) func(*Options) {
	return func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

func TestSmallFilesArePacked(t *testing.T) {
	fx := newFixture(t, 64*mib)
	before := openFiles(t)
	a, b := fx.fillWith("a", filled(slotSize, 1)), fx.fillWith("b", filled(slotSize+1, 2))
	for _, c := range []struct {
		f      *File
		packed bool
		want   []byte
	}{
		{fx.blob(a, StructureName), true, filled(slotSize, 1)},
		{fx.blob(b, StructureName), false, filled(slotSize+1, 2)},
		{fx.blob(b, ManifestName), true, nil},
	} {
		if c.f.packed() != c.packed {
			t.Errorf("%s/%s: packed %v", c.f.entry.id, c.f.name, c.f.packed())
		}
		if got := content(t, c.f); c.want != nil && !bytes.Equal(got, c.want) {
			t.Errorf("%s/%s: other bytes", c.f.entry.id, c.f.name)
		}
	}
	if m := a.Manifest(); m == nil || m.ID != "a" {
		t.Errorf("manifest %+v", m)
	}
	if n := openFiles(t) - before; n != 4 { // two arenas, the large structure.pkl, the pack
		t.Errorf("%d descriptors are open", n)
	}
	if got, want := fx.Stats().CachedBytes, a.size()+b.size(); got != want || a.size() < slotSize {
		t.Errorf("%d bytes are cached, want %d", got, want)
	}
	must(t, fx.Evict("a", alice))
	must(t, fx.Evict("b", alice))
	if n := openFiles(t) - before; n != 0 || fx.pack.fd != -1 {
		t.Errorf("%d descriptors are open, that of the pack is %d", n, fx.pack.fd)
	}
	fx.fillWith("c", filled(10, 3)) // it begins anew
}

// wantClean looks for the bytes of a file of 0xff in the slots of an entry.
func (fx *fixture) wantClean(e *Entry) {
	fx.t.Helper()
	for _, name := range []string{ManifestName, StructureName} {
		data := make([]byte, slotSize)
		_, err := unix.Pread(fx.pack.fd, data, fx.blob(e, name).base())
		must(fx.t, err)
		if bytes.IndexByte(data, 0xff) >= 0 {
			fx.t.Errorf("bytes of another entry in the slot of %s", name)
		}
	}
}

// A slot gives its memory back, and what comes into it next has nothing of what was there.
func TestSlotsAreReused(t *testing.T) {
	fx := newFixture(t, 64*mib)
	a := fx.fillWith("a", filled(slotSize, 0xff))
	base := fx.blob(a, StructureName).base()
	fx.fillWith("b", filled(10, 1))
	full, end := allocated(t, fx.pack.fd), fx.pack.end
	if full < slotSize {
		t.Fatalf("%d bytes are allocated", full)
	}
	must(t, fx.Evict("a", alice))
	if left := allocated(t, fx.pack.fd); left > full-slotSize {
		t.Errorf("%d bytes were allocated, %d are left", full, left)
	}
	c := fx.fillWith("c", filled(10, 3))
	slot := map[int64]bool{fx.blob(c, StructureName).base(): true, fx.blob(c, ManifestName).base(): true}
	if !slot[base] || fx.pack.end != end {
		t.Errorf("slots %v of %d, want that at %d", slot, fx.pack.end, base)
	}
	fx.wantClean(c)
	if got := content(t, fx.blob(c, StructureName)); !bytes.Equal(got, filled(10, 3)) {
		t.Errorf("c has %v", got)
	}
}

// A slot that cannot be emptied is used again all the same, and the next file has nothing of the one before.
func TestSlotThatIsNotEmptied(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fillWith("a", filled(slotSize, 0xff))
	fx.fillWith("b", filled(10, 1))
	end, real := fx.pack.end, fx.os.Fallocate
	fx.os.Fallocate = func(int, uint32, int64, int64) error { return unix.ENOMEM }
	must(t, fx.Evict("a", alice))
	fx.os.Fallocate = real
	if !bytes.Contains(fx.log.Bytes(), []byte("the memory of a small file is not given back")) {
		t.Errorf("log: %s", fx.log)
	}
	c := fx.fillWith("c", filled(10, 3))
	if fx.pack.end != end || len(fx.pack.full) != 0 {
		t.Errorf("%d slots, %d before, %d to be written over", fx.pack.end, end, len(fx.pack.full))
	}
	fx.wantClean(c)
	if got := content(t, fx.blob(c, StructureName)); !bytes.Equal(got, filled(10, 3)) {
		t.Errorf("c has %v", got)
	}
}

// What does not get into the pack keeps its memfd, and all else is as always.
func TestPackFails(t *testing.T) {
	for name, inject := range map[string]func(*OS){
		"memfd_create": func(o *OS) {
			o.MemfdCreate = func(string, int) (int, error) { return -1, unix.EMFILE }
		},
		"pwrite": func(o *OS) {
			o.Pwrite = func(int, []byte, int64) (int, error) { return 0, unix.ENOSPC }
		},
		"short pwrite": func(o *OS) {
			real := o.Pwrite
			o.Pwrite = func(fd int, data []byte, off int64) (int, error) { return real(fd, data[:len(data)/2], off) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			fx := newFixture(t, 64*mib, debugLog(&log))
			before := openFiles(t)
			e := fx.stageWith("a", filled(100, 1))
			real := *fx.os
			inject(fx.os)
			must(t, fx.Commit(context.Background(), "a", alice, false))
			*fx.os = real
			if fx.packed != 0 || fx.pack.fd != -1 || openFiles(t)-before != 3 {
				t.Errorf("%d files are packed", fx.packed)
			}
			if !bytes.Contains(log.Bytes(), []byte("level=DEBUG msg=\"a small file keeps a memfd of its own\"")) {
				t.Errorf("log: %s", &log)
			}
			if got := content(t, fx.blob(e, StructureName)); !bytes.Equal(got, filled(100, 1)) {
				t.Errorf("got %v", got)
			}
			ok, err := sealed(fx.os, fx.blob(e, ManifestName).fd)
			if !ok || err != nil {
				t.Errorf("sealed %v, %v", ok, err)
			}
		})
	}
}

// In the middle of the pack, a failed write leaves a slot that is used again, without what was written.
func TestPackIsWrittenInPart(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fillWith("a", filled(100, 1))
	e, full := fx.stageWith("b", filled(slotSize, 2)), allocated(t, fx.pack.fd)
	real := fx.os.Pwrite
	fx.os.Pwrite = func(fd int, data []byte, off int64) (int, error) {
		_, err := real(fd, data, off)
		must(t, err)
		return 0, unix.ENOSPC
	}
	must(t, fx.Commit(context.Background(), "b", alice, false))
	fx.os.Pwrite = real
	if f := fx.blob(e, StructureName); f.packed() || fx.packed != 2 || len(fx.pack.free) == 0 {
		t.Errorf("packed %v, %d in all, %d slots are free", f.packed(), fx.packed, len(fx.pack.free))
	}
	if got := allocated(t, fx.pack.fd); got != full {
		t.Errorf("%d bytes are allocated, %d before", got, full)
	}
}

// Who has a file open when it is published reads its memfd on.
func TestPublishedWhileRead(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.stageWith("a", filled(100, 1))
	f := fx.blob(e, StructureName)
	h, err := f.Open(false, 1)
	must(t, err)
	fd := h.FD()
	must(t, fx.Commit(context.Background(), "a", alice, false))
	if f.packed() || h.FD() != fd || h.Base() != 0 || !fx.blob(e, ManifestName).packed() {
		t.Errorf("packed %v, descriptor %d, before %d", f.packed(), h.FD(), fd)
	}
	data := make([]byte, 100)
	must(t, readFull(fd, data, 0))
	if !bytes.Equal(data, filled(100, 1)) {
		t.Errorf("got %v", data)
	}
	h.Release()
	if got := content(t, f); !bytes.Equal(got, data) {
		t.Errorf("got %v", got)
	}
}

// A slot stays while somebody reads it, and goes with the last handle.
func TestPackedFileIsReadAfterEviction(t *testing.T) {
	fx := newFixture(t, 64*mib)
	f := fx.blob(fx.fillWith("a", filled(slotSize, 1)), StructureName)
	h, err := f.Open(false, 1)
	must(t, err)
	must(t, fx.Evict("a", alice))
	fx.fillWith("b", filled(slotSize, 2))
	data := make([]byte, slotSize)
	must(t, readFull(h.FD(), data, h.Base()))
	if !bytes.Equal(data, filled(slotSize, 1)) {
		t.Error("other bytes")
	}
	if s := fx.Stats(); s.DrainingBytes != slotSize {
		t.Errorf("stats %+v", s)
	}
	full := allocated(t, fx.pack.fd)
	h.Release()
	if left := allocated(t, fx.pack.fd); left != full-slotSize {
		t.Errorf("%d bytes were allocated, %d are left", full, left)
	}
}

// No seal keeps writes from the pack, so the store does.
func TestPackedFilesAreNotWritten(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.stageWith("a", filled(100, 1))
	f := fx.blob(e, StructureName)
	h, err := f.Open(true, 1)
	must(t, err)
	stale := *h // goes on to be used after its release
	h.Release()
	must(t, fx.Commit(context.Background(), "a", alice, false))
	if !f.packed() {
		t.Fatal("it is not packed")
	}
	_, err = f.Open(true, 1)
	wantErr(t, err, ErrReadOnly)
	_, err = stale.WriteAt([]byte("x"), 0)
	wantErr(t, err, ErrReadOnly)
	wantErr(t, f.Truncate(5), ErrReadOnly)
	_, err = f.pwrite([]byte("x"), 0)
	wantErr(t, err, ErrReadOnly)
	for _, write := range []bool{false, true} {
		if fd, err := f.Reopen(write, 1); err == nil {
			t.Errorf("descriptor %d was given out", fd)
		}
	}
	if got := content(t, f); !bytes.Equal(got, filled(100, 1)) {
		t.Errorf("got %v", got)
	}
}

// The folder of an entry that is taken apart lists its storages, which are in a manifest that was packed.
func TestPackedEntryIsTakenApart(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fillWith("a", filled(10, 1))
	b := fx.fillWith("b", filled(10, 1))
	must(t, b.Unlink("", StructureName, alice))
	if m := b.Manifest(); m == nil || m.ID != "b" {
		t.Errorf("manifest %+v", m)
	}
	if fx.packed != 2 || fx.pack.used != 2 {
		t.Errorf("%d files, %d slots", fx.packed, fx.pack.used)
	}
}
