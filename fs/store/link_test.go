package store

import (
	"context"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/schema/schematest"
)

const arenaName = "model.safetensors"

func (fx *fixture) arena(e *Entry) *File {
	fx.t.Helper()
	f, err := e.File(TensorsName, arenaName)
	must(fx.t, err)
	return f
}

// stageLinked makes a complete staging whose arena is that of another entry.
func (fx *fixture) stageLinked(id string, from *Entry) *Entry {
	fx.t.Helper()
	c := from.Owner()
	e, err := fx.Begin(id, c)
	must(fx.t, err)
	must(fx.t, e.MakeTensors(c))
	f, err := e.Link(fx.arena(from), arenaName, c)
	must(fx.t, err)
	write(fx.t, e, StructureName, make([]byte, 100))
	write(fx.t, e, ManifestName, schematest.Encode(manifestFor(id, f.Size())))
	return e
}

func (fx *fixture) fillLinked(id string, from *Entry) *Entry {
	fx.t.Helper()
	e := fx.stageLinked(id, from)
	must(fx.t, fx.Commit(context.Background(), id, e.Owner(), false))
	return e
}

func (fx *fixture) wantBytes(cached, staging, draining, shared uint64) {
	fx.t.Helper()
	s := fx.Stats()
	for _, id := range fx.PublishedIDs() {
		e, err := fx.Published(id)
		must(fx.t, err)
		cached += e.Info().Bytes - fx.arena(e).Size() // of manifest and structure
	}
	for _, id := range fx.StagingIDs() {
		e, err := fx.Staging(id)
		must(fx.t, err)
		staging += e.Info().Bytes - fx.arena(e).Size()
	}
	if s.CachedBytes != cached || s.StagingBytes != staging || s.DrainingBytes != draining || s.SharedBytes != shared {
		fx.t.Errorf("%d cached, %d staging, %d draining, %d shared; want %d, %d, %d, %d",
			s.CachedBytes, s.StagingBytes, s.DrainingBytes, s.SharedBytes, cached, staging, draining, shared)
	}
	must(fx.t, fx.Check())
}

// The memory of a linked arena is there once, for as long as one of its entries or a reader is.
func TestLink(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		t.Run("evict "+first, func(t *testing.T) {
			fx := newFixture(t, 64*mib)
			a := fx.fill("a", mib, alice)
			b := fx.stageLinked("b", a)
			fx.wantBytes(mib, 0, 0, 0)
			must(t, fx.Commit(context.Background(), "b", alice, false))
			fx.wantBytes(mib, 0, 0, mib)
			if x, y := fx.arena(a), fx.arena(b); idOf(x.fd) != idOf(y.fd) || x.fd == y.fd || x.Serial() == y.Serial() {
				t.Error("not two files on one memfd")
			}
			for _, e := range []*Entry{a, b} {
				if i := e.Info(); i.Shared != mib || i.Bytes < mib+100 {
					t.Errorf("%+v", i)
				}
			}
			lease := fx.lease(a, 1)
			must(t, fx.Evict(first, alice))
			fx.wantBytes(mib, 0, 0, 0)
			left := map[string]*Entry{"a": b, "b": a}[first]
			if i := left.Info(); i.Shared != 0 {
				t.Errorf("%+v", i)
			}
			must(t, fx.Evict(left.ID(), alice))
			fx.wantBytes(0, 0, mib, 0)
			if n, err := fileSize(lease.FD()); err != nil || n != mib {
				t.Errorf("the memory is gone under a lease: %d, %v", n, err)
			}
			lease.Release()
			fx.wantBytes(0, 0, 0, 0)
		})
	}
}

// A staging keeps what it has linked, and gives it up when it is dropped.
func TestLinkOutlivesItsEntry(t *testing.T) {
	fx := newFixture(t, 64*mib)
	a := fx.fill("a", mib, alice)
	fx.stageLinked("b", a)
	must(t, fx.Evict("a", alice))
	fx.wantBytes(0, mib, 0, 0)
	must(t, fx.Commit(context.Background(), "b", alice, false))
	fx.wantBytes(mib, 0, 0, 0)
	b, err := fx.Published("b")
	must(t, err)
	fx.stageLinked("c", b)
	must(t, fx.Drop("c", alice))
	fx.wantBytes(mib, 0, 0, 0)
	fx.fillLinked("b", b) // in its own place
	fx.wantBytes(mib, 0, 0, 0)
}

func TestLinkRefuses(t *testing.T) {
	fx := newFixture(t, 64*mib)
	a, others := fx.fill("a", mib, alice), fx.fill("o", mib, bob)
	staged, h := fx.stage("s", mib, alice)
	h.Release()
	gone := fx.fill("gone", mib, alice)
	removed := fx.arena(gone)
	must(t, fx.Evict("gone", alice))
	manifest, err := a.File("", ManifestName)
	must(t, err)
	e, err := fx.Begin("e", alice)
	must(t, err)
	link := func(from *File, name string, c Caller) error {
		_, err := e.Link(from, name, c)
		return err
	}
	wantErr(t, link(fx.arena(a), arenaName, alice), ErrNotFound) // there is no tensors/
	must(t, e.MakeTensors(alice))
	wantErr(t, link(fx.arena(others), arenaName, alice), ErrNotOwner)
	wantErr(t, link(fx.arena(others), arenaName, root), ErrNotOwner)
	wantErr(t, link(fx.arena(a), arenaName, bob), ErrNotOwner)
	wantErr(t, link(fx.arena(staged), arenaName, alice), ErrNotFound)
	wantErr(t, link(removed, arenaName, alice), ErrNotFound)
	wantErr(t, link(manifest, arenaName, alice), ErrNotFound)
	wantErr(t, link(fx.arena(a), "../x", alice), ErrName)
	real := fx.os.Reopen
	fx.os.Reopen = func(int, int) (int, error) { return -1, unix.EMFILE }
	wantErr(t, link(fx.arena(a), arenaName, alice), unix.EMFILE)
	fx.os.Reopen = real
	must(t, link(fx.arena(a), arenaName, alice))
	wantErr(t, link(fx.arena(a), arenaName, alice), ErrExists)
	_, err = a.Link(fx.arena(a), "other.safetensors", alice)
	wantErr(t, err, ErrReadOnly)
	wantErr(t, fx.arena(e).Truncate(2*mib), ErrResize)
	w, err := fx.arena(e).Open(true, 1)
	must(t, err)
	_, err = w.WriteAt([]byte("x"), 0)
	wantErr(t, err, unix.EPERM) // it is sealed
	w.Release()
}

// Making room counts what comes back: nothing for one of two that share, all of it for both.
func TestSharedMemoryAndRoom(t *testing.T) {
	fx := newFixture(t, 10*mib)
	a := fx.fill("a", 6*mib, alice)
	b := fx.fillLinked("b", a)
	lease := fx.lease(b, 1)
	st, err := fx.Begin("c", alice)
	must(t, err)
	wantErr(t, st.Reserve(6*mib, alice), ErrNoSpace)
	fx.wantEntries("a", "b")
	lease.Release()
	must(t, st.Reserve(3*mib, alice))
	fx.wantEntries("a", "b")
	must(t, st.Reserve(6*mib, alice))
	fx.wantEntries()
}

func TestSharedMemoryIsPinnedOnce(t *testing.T) {
	fx := newFixture(t, 64*mib)
	a := fx.fill("a", mib, alice)
	b := fx.fillLinked("b", a)
	must(t, a.SetPinned(alice, true))
	one := fx.Stats().PinnedBytes
	must(t, b.SetPinned(alice, true))
	if both := fx.Stats().PinnedBytes; one < mib || both < one || both > one+mib/2 {
		t.Errorf("pinned: %d, then %d", one, both)
	}
}

// Another daemon finds out what is shared by the memfds.
func TestAdoptShared(t *testing.T) {
	from := newFixture(t, 64*mib)
	a := from.fill("a", mib, alice)
	from.fillLinked("b", a)
	from.fill("c", mib, alice)
	from.stageLinked("d", a)
	to := newFixture(t, 64*mib)
	must(t, to.Adopt(to.adoptions(from, "d", "b", "a", "c")))
	to.wantBytes(2*mib, 0, 0, mib)
	for _, id := range []string{"a", "b"} {
		must(t, to.Evict(id, alice))
	}
	to.wantBytes(mib, mib, 0, 0)
	must(t, to.Drop("d", alice))
	to.wantBytes(mib, 0, 0, 0)
}

func TestArenasOfSize(t *testing.T) {
	fx := newFixture(t, 100*mib)
	want := func(uid uint32, bytes uint64, limit int, ids ...string) {
		t.Helper()
		var got []string
		for _, a := range fx.ArenasOfSize(uid, bytes, limit) {
			if a.Name != arenaName {
				t.Errorf("%+v", a)
			}
			got = append(got, a.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("of uid %d with %d bytes: %q, want %q", uid, bytes, got, ids)
		}
	}
	want(alice.UID, 4096, 9)
	fx.fill("a", 4096, alice)
	fx.fill("b", 4096, alice)
	fx.fill("c", 8192, alice)
	fx.fill("bobs", 4096, bob)
	_, staged := fx.stage("staged", 4096, alice)
	defer staged.Release()
	want(alice.UID, 4096, 9, "b", "a")
	want(alice.UID, 8192, 9, "c")
	want(bob.UID, 4096, 9, "bobs")
	want(root.UID, 4096, 9)
	want(alice.UID, 4096, 1, "b")
	must(t, fx.Evict("b", alice))
	want(alice.UID, 4096, 9, "a")
	must(t, fx.Evict("c", alice))
	want(alice.UID, 8192, 9)
}
