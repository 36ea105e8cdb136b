package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// The other daemon gets sealed memfds that nothing here depends on, and packs what it gets.
func TestPackedFilesAreHandedOver(t *testing.T) {
	from := newFixture(t, 64*mib)
	a := from.fillWith("a", filled(1000, 7))
	from.fillWith("b", filled(slotSize+1, 8))
	to := newFixture(t, 64*mib)
	idle := openFiles(t)
	r, files := from.copies("a")
	for _, f := range files {
		if ok, err := sealed(from.os, f.FD); !ok || err != nil {
			t.Errorf("%s: sealed %v, %v", f.Name, ok, err)
		}
		if size, err := fileSize(f.FD); err != nil || f.Name == StructureName && size != 1000 {
			t.Errorf("%s: %d bytes, %v", f.Name, size, err)
		}
		if !f.Arena && idOf(f.FD) == idOf(from.pack.fd) {
			t.Errorf("%s: it is the pack", f.Name)
		}
	}
	adoption, err := to.NewAdoption(r, files)
	must(t, err)
	if n := openFiles(t) - idle; n != 2 { // the arena, and the pack there
		t.Errorf("%d descriptors are open for an entry on its way", n)
	}
	must(t, to.Adopt(append(to.adoptions(from, "b"), adoption)))
	got, err := to.Published("a")
	must(t, err)
	for name, want := range map[string][]byte{StructureName: filled(1000, 7), ManifestName: nil} {
		f := to.blob(got, name)
		if data := content(t, f); !f.packed() || f.fd == from.pack.fd || want != nil && !bytes.Equal(data, want) {
			t.Errorf("%s: packed %v, %d bytes", name, f.packed(), len(data))
		}
	}
	if m := got.Manifest(); m == nil || m.ID != "a" || got.size() != a.size() {
		t.Errorf("manifest %+v", m)
	}
	if to.packed != 3 || to.Stats().CachedBytes <= slotSize {
		t.Errorf("%d files are packed, stats %+v", to.packed, to.Stats())
	}
}

// What is not adopted in the end leaves no slot.
func TestAdoptionsAreGivenUp(t *testing.T) {
	from := newFixture(t, 64*mib)
	from.fillWith("a", filled(1000, 7))
	from.fillWith("b", filled(1000, 8))
	to, other := newFixture(t, 64*mib), newFixture(t, 64*mib)
	before := openFiles(t)
	for _, a := range to.adoptions(from, "a", "b") {
		if to.pack.used == 0 {
			t.Error("nothing is packed")
		}
		a.Close()
		a.Close()
	}
	wantErr(t, other.Adopt(to.adoptions(from, "a")), ErrForeign) // another store has the slots
	wantErr(t, to.Adopt(to.adoptions(from, "a", "a")), ErrExists)
	must(t, to.Evict("a", alice))
	if n := openFiles(t); n != before || to.pack.used != 0 {
		t.Errorf("%d descriptors before, %d after, %d slots", before, n, to.pack.used)
	}
}

// Without a descriptor to be had the entry is not lent, and nothing has changed.
func TestBorrowFails(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fillWith("a", filled(100, 1))
	r, before := fx.Records(false)[0], openFiles(t)
	for nth, name := range []string{"memfd_create", "memfd_create", "pwrite", "add seals"} {
		real := *fx.os
		injections[name](fx.os, &injector{err: unix.EMFILE, nth: nth%2 + 1})
		files, _, err := fx.Borrow(r)
		*fx.os = real
		wantErr(t, err, unix.EMFILE)
		if files != nil || openFiles(t) != before {
			t.Errorf("%s: %v, %d descriptors before, %d after", name, files, before, openFiles(t))
		}
	}
	_, release, err := fx.Borrow(r)
	must(t, err)
	release()
}

// A fill that was under way in the other daemon, and that nobody wrote any more, is packed when it is committed here.
func TestAdoptedStagingIsPacked(t *testing.T) {
	from := newFixture(t, 64*mib)
	from.stageWith("a", filled(100, 1))
	from.fill("other", kib, alice)
	to := newFixture(t, 64*mib)
	must(t, to.Adopt(to.adoptions(from, "other", "a")))
	must(t, to.Commit(context.Background(), "a", alice, false))
	e, err := to.Published("a")
	must(t, err)
	f := to.blob(e, StructureName)
	if got := content(t, f); !f.packed() || f.Size() != 100 || !bytes.Equal(got, filled(100, 1)) {
		t.Errorf("packed %v, %d bytes, %v", f.packed(), f.Size(), got)
	}
}

// keeper notes what it is told, and what it was given to keep.
type keeper struct {
	t       *testing.T
	kept    map[string][]byte // by entry and file
	updated []string
	lost    []string
	has     map[uint64]bool
}

func (k *keeper) Keep(r schema.EntryRecord, files []Passed) {
	for _, f := range files {
		size, err := fileSize(f.FD)
		must(k.t, err)
		data := make([]byte, size)
		must(k.t, readFull(f.FD, data, 0))
		if seals, err := unix.FcntlInt(uintptr(f.FD), unix.F_GET_SEALS, 0); err != nil || seals&baseSeals != baseSeals {
			k.t.Errorf("%s/%s: seals %#x, %v", r.ID, f.Name, seals, err)
		}
		k.kept[r.ID+"/"+f.Name] = data
	}
	k.has[r.Serial] = true
}

func (k *keeper) Keeps(serial uint64) bool    { return k.has[serial] }
func (k *keeper) Update(r schema.EntryRecord) { k.updated = append(k.updated, r.ID) }
func (k *keeper) Lose(r schema.EntryRecord, files []schema.FileRecord, why error) {
	k.lost = append(k.lost, fmt.Sprintf("%s: %d files, %v", r.ID, len(files), why))
}
func (k *keeper) Forget(serial uint64) { delete(k.has, serial) }

func (k *keeper) wantKept(name string, n int) {
	k.t.Helper()
	if got := len(k.kept[name]); got != n {
		k.t.Errorf("%d bytes of %s are kept, want %d", got, name, n)
	}
}

// A keeper gets whole memfds of a fill and of what is taken over, and nothing but news of what it has.
func TestKeeperGetsMemfds(t *testing.T) {
	k := &keeper{t: t, kept: map[string][]byte{}, has: map[uint64]bool{}}
	from := newFixture(t, 64*mib)
	from.fillWith("a", filled(100, 1))
	b := from.fillWith("b", filled(200, 2))
	from.fillWith("c", filled(300, 2))
	to := newFixture(t, 64*mib, func(o *Options) { o.Keeper = k })
	k.has[b.serial] = true // it came back from there
	before := openFiles(t)
	must(t, to.Adopt(to.adoptions(from, "a", "b")))
	k.wantKept("a/"+StructureName, 100)
	k.wantKept("b/"+StructureName, 0)
	if !slices.Equal(k.updated, []string{"b"}) {
		t.Errorf("updated %v", k.updated)
	}
	if n := openFiles(t) - before; n != 3 { // two arenas, and the pack
		t.Errorf("%d descriptors are open", n)
	}
	adoptions := to.adoptions(from, "c")
	real := to.os.MemfdCreate
	to.os.MemfdCreate = func(string, int) (int, error) { return -1, unix.EMFILE }
	must(t, to.Adopt(adoptions))
	to.os.MemfdCreate = real
	k.wantKept("c/"+StructureName, 0)
	if len(k.lost) != 1 || !strings.HasPrefix(k.lost[0], "c: 3 files, ") {
		t.Errorf("lost %v", k.lost)
	}
	to.fillWith("d", filled(400, 4))
	k.wantKept("d/"+StructureName, 400)
	if n := to.descriptors(); n != 4+1+4 { // a record each, too
		t.Errorf("%d descriptors are counted", n)
	}
	to.wantEntries("a", "b", "c", "d")
}
