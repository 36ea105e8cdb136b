package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"overmind-fs/schema/schematest"
)

func TestRoomIsMadeFromTheLeastRecentlyUsed(t *testing.T) {
	fx := newFixture(t, 10*mib)
	a := fx.fill("a", 3*mib, alice)
	fx.fill("b", 3*mib, alice)
	fx.fill("c", 3*mib, alice)
	a.Hit()
	fx.fill("d", 3*mib, alice)
	fx.wantEntries("a", "c", "d")
	if s := fx.Stats(); s.Counters.Evictions[ReasonRoom] != 1 || s.Counters.Hits != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestPinnedAndLeasedStay(t *testing.T) {
	fx := newFixture(t, 10*mib)
	a := fx.fill("a", 3*mib, alice)
	b := fx.fill("b", 3*mib, alice)
	fx.fill("c", 3*mib, alice)
	must(t, a.SetPinned(alice, true))
	lease := fx.lease(b, 42)
	if i := b.Info(); i.Leases != 1 || len(i.LeasePIDs) != 1 || i.LeasePIDs[0] != 42 {
		t.Errorf("info %+v", i)
	}
	fx.fill("d", 3*mib, alice)
	fx.wantEntries("a", "b", "d")
	lease.Release()
	fx.fill("e", 3*mib, alice)
	fx.wantEntries("a", "d", "e")
}

func TestWhatDoesNotFitEvictsNothing(t *testing.T) {
	fx := newFixture(t, 10*mib)
	a := fx.fill("a", 4*mib, alice)
	fx.fill("b", 4*mib, alice)
	must(t, a.SetPinned(alice, true))
	e, err := fx.Begin("big", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	f, h, err := e.CreateArena("model.safetensors", alice)
	must(t, err)
	defer h.Release()
	for _, size := range []uint64{7 * mib, 11 * mib, 1 << 62, 1<<63 - 1} {
		wantErr(t, f.Truncate(size), ErrNoSpace)
		if got := allocated(t, h.FD()); got != 0 {
			t.Errorf("%d bytes are allocated for what was refused", got)
		}
	}
	err = f.Truncate(7 * mib)
	wantErr(t, err, ErrNoSpace)
	for _, words := range []string{"7.0 MiB", "budget", "8.0 MiB of 10 MiB are in use", "4.0 MiB could be evicted"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%q does not say %q", err, words)
		}
	}
	fx.wantEntries("a", "b")
	if s := fx.Stats(); s.StagingBytes != 0 || s.Counters.Refused != 5 {
		t.Errorf("stats %+v", s)
	}
	for _, word := range []string{"does not fit", "big/model.safetensors", "7.0 MiB", "evictable"} {
		if !strings.Contains(fx.log.String(), word) {
			t.Errorf("the log does not say %q", word)
		}
	}
	must(t, f.Truncate(5*mib))
	fx.wantEntries("a")
}

func TestFreeMemoryCounts(t *testing.T) {
	var room uint64 = 1 << 40
	fx := newFixture(t, 1<<40, func(o *Options) {
		o.OS.Headroom = func() (uint64, error) { return room, nil }
	})
	fx.fill("a", 4*mib, alice)
	e, err := fx.Begin("b", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	f, h, err := e.CreateArena("model.safetensors", alice)
	must(t, err)
	defer h.Release()
	room = memoryMargin + 2*mib
	err = f.Truncate(8 * mib) // a would free 4 of the missing 6
	wantErr(t, err, ErrNoSpace)
	if !strings.Contains(err.Error(), "free memory, 66 MiB are left") {
		t.Error(err)
	}
	fx.wantEntries("a")
	must(t, f.Truncate(5*mib))
	fx.wantEntries()
}

// What does not come back when it is evicted, as from a daemon that was replaced, is not allocated once more.
func TestMemoryThatDoesNotComeBack(t *testing.T) {
	var room uint64 = 1 << 40
	fx := newFixture(t, 1<<40, func(o *Options) {
		o.OS.Headroom = func() (uint64, error) { return room, nil }
	})
	fx.fill("a", memoryMargin+4*mib, alice)
	e, err := fx.Begin("b", alice)
	must(t, err)
	room = 3 * mib
	err = e.Reserve(5*mib, alice)
	wantErr(t, err, ErrNoSpace)
	if !strings.Contains(err.Error(), "still held") || fx.Stats().Counters.Refused != 1 {
		t.Error(err)
	}
	must(t, fx.Check())
}

// A fill of several arenas that does not fit as a whole is refused before the first of them evicts anything.
func TestReserve(t *testing.T) {
	fx := newFixture(t, 10*mib)
	must(t, fx.fill("pinned", 4*mib, alice).SetPinned(alice, true))
	fx.fill("idle", 4*mib, alice)
	e, err := fx.Begin("a", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	wantErr(t, e.Reserve(6*mib, bob), ErrNotOwner)
	for _, n := range []uint64{7 * mib, 1 << 62, 1<<63 - 1} {
		wantErr(t, e.Reserve(n, alice), ErrNoSpace)
	}
	fx.wantEntries("idle", "pinned")
	must(t, e.Reserve(5*mib, alice))
	fx.wantEntries("pinned")
	must(t, fx.Check())

	// Others cannot have it, and what is created uses it up.
	other, err := fx.Begin("b", alice)
	must(t, err)
	must(t, other.MakeTensors(alice))
	taken, h, err := other.CreateArena("model.safetensors", alice)
	must(t, err)
	defer h.Release()
	wantErr(t, taken.Truncate(mib), ErrNoSpace)
	if said := fx.log.String(); !strings.Contains(said, `reserved="5.0 MiB"`) {
		t.Errorf("nothing says where the room is: %s", said)
	}
	for _, name := range []string{"one.safetensors", "two.safetensors"} {
		f, h, err := e.CreateArena(name, alice)
		must(t, err)
		must(t, f.Truncate(2*mib))
		h.Release()
	}
	write(t, e, StructureName, make([]byte, 1000))
	must(t, fx.Check())
	wantErr(t, taken.Truncate(mib), ErrNoSpace)
	must(t, fx.Drop("a", alice))
	must(t, taken.Truncate(5*mib))
}

func TestReservationEndsWithTheCommit(t *testing.T) {
	fx := newFixture(t, 10*mib)
	e, h := fx.stage("a", 2*mib, alice)
	must(t, e.Reserve(7*mib, alice))
	must(t, e.Reserve(6*mib, alice)) // in place of the first
	h.Release()
	must(t, fx.Commit(context.Background(), "a", alice, false))
	wantErr(t, e.Reserve(mib, alice), ErrReadOnly)
	must(t, fx.Check())
	fx.fill("b", 7*mib, alice)
	fx.wantEntries("a", "b")
}

// The system's limit of open files is one of the cache, not one of its clients.
func TestMaxFiles(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) { o.MaxFiles = 6 }) // three arenas, the pack, and a fill in the middle
	a := fx.fill("a", mib, alice)
	fx.fill("b", mib, alice)
	fx.fill("c", mib, alice)
	a.Hit()
	fx.fill("d", mib, alice)
	fx.wantEntries("a", "c", "d")
	if s := fx.Stats(); s.Counters.Evictions[ReasonMaxFiles] != 1 {
		t.Errorf("stats %+v", s)
	}
	for _, id := range fx.PublishedIDs() {
		e, err := fx.Published(id)
		must(t, err)
		must(t, e.SetPinned(alice, true))
	}
	e, err := fx.Begin("e", alice)
	must(t, err)
	must(t, e.MakeTensors(alice))
	write(t, e, StructureName, nil)
	write(t, e, ManifestName, nil)
	_, _, err = e.CreateArena(arenaName, alice)
	wantErr(t, err, ErrNoSpace)
	fx.wantEntries("a", "c", "d")
}

// What is packed takes no descriptor: with one for each file, a third of these would fit.
func TestMaxFilesOfSmallEntries(t *testing.T) {
	const entries = 100
	// An arena each, the pack, and the three files of a fill.
	fx := newFixture(t, 64*mib, func(o *Options) { o.MaxFiles = entries + 3 })
	before := openFiles(t)
	for n := range entries {
		fx.fill(fmt.Sprint("e", n), kib, alice)
	}
	if s := fx.Stats(); s.Entries != entries || s.Counters.Evictions[ReasonMaxFiles] != 0 {
		t.Errorf("stats %+v", s)
	}
	if n := openFiles(t) - before; n != entries+1 {
		t.Errorf("%d descriptors are open", n)
	}
	fx.fill("more", kib, alice)
	if s := fx.Stats(); s.Entries != entries || s.Counters.Evictions[ReasonMaxFiles] != 1 {
		t.Errorf("stats %+v", s)
	}
}

// Entries that have next to no bytes are bounded by descriptors, also where they have no arena.
func TestMaxFilesOfEntriesWithoutArenas(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) { o.MaxFiles = 6 })
	for _, id := range []string{"a", "b", "c", "d"} {
		e, err := fx.Begin(id, alice)
		must(t, err)
		must(t, e.MakeTensors(alice))
		write(t, e, StructureName, make([]byte, 100))
		m := manifestFor(id, 0)
		m.Arenas, m.Storages, m.StorageNames = nil, nil, nil
		write(t, e, ManifestName, schematest.Encode(m))
		must(t, fx.Commit(context.Background(), id, alice, false))
	}
	fx.wantEntries("b", "c", "d")
}

func TestUnknownFreeMemoryIsNoReasonToRefuse(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) {
		o.OS.Headroom = func() (uint64, error) { return 0, errors.New("no /proc") }
	})
	fx.fill("a", mib, alice)
}

func TestHeadroomIsPlausible(t *testing.T) {
	total, err := TotalMemory()
	must(t, err)
	room, err := Headroom()
	must(t, err)
	if room == 0 || room > total {
		t.Errorf("%d of %d bytes free", room, total)
	}
}

func TestBlobsCountAndAreBounded(t *testing.T) {
	fx := newFixture(t, 4*mib)
	e, err := fx.Begin("a", alice)
	must(t, err)
	f, h, err := e.CreateBlob(StructureName, alice)
	must(t, err)
	defer h.Release()
	data := make([]byte, mib)
	for i := range int64(4) {
		_, err := h.WriteAt(data, i*int64(mib))
		must(t, err)
	}
	_, err = h.WriteAt(data[:1], 4*int64(mib))
	wantErr(t, err, ErrNoSpace)
	_, err = h.WriteAt(data[:2], MaxBlobBytes-1)
	wantErr(t, err, ErrTooLarge)
	wantErr(t, f.Truncate(MaxBlobBytes+1), ErrTooLarge)
	_, err = h.WriteAt(data, 0) // overwriting takes nothing
	must(t, err)
	must(t, f.Truncate(10))
	if s := fx.Stats(); s.StagingBytes != 10 || f.Size() != 10 {
		t.Errorf("stats %+v, size %d", s, f.Size())
	}
}

func TestArenaSizeIsSetOnce(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, h := fx.stage("a", mib, alice)
	f := h.File()
	must(t, f.Truncate(mib))
	wantErr(t, f.Truncate(2*mib), ErrResize)
	wantErr(t, f.Truncate(0), ErrResize)
	_, err := h.WriteAt([]byte("xx"), int64(mib)-1)
	wantErr(t, err, ErrResize)
	_, err = h.WriteAt([]byte("x"), int64(mib)-1)
	must(t, err)
	h.Release()
	_, h2, err := e.CreateArena("other.safetensors", alice)
	must(t, err)
	defer h2.Release()
	_, err = h2.WriteAt([]byte("x"), 0)
	wantErr(t, err, ErrResize)
	_, _, err = e.CreateArena("other.safetensors", alice)
	wantErr(t, err, ErrExists)
	for _, name := range []string{"x.bin", "../x.safetensors", ".safetensors", ""} {
		_, _, err = e.CreateArena(name, alice)
		wantErr(t, err, ErrName)
	}
	_, _, err = e.CreateBlob("notes.txt", alice)
	wantErr(t, err, ErrName)
}

func TestAllocationHasNoHoles(t *testing.T) {
	for _, huge := range []bool{false, true} {
		if huge {
			if err := ProbeHugePages(NewOS()); err != nil {
				t.Skipf("no huge pages: %v", err)
			}
		}
		for _, size := range []uint64{1, 4 * kib, 2*mib - 1, 2 * mib, 7*mib + 123} {
			fx := newFixture(t, 64*mib, func(o *Options) { o.HugePages = huge })
			_, h := fx.stage("a", size, alice)
			if got := allocated(t, h.FD()); got < size {
				t.Errorf("huge %v: %d of %d bytes are allocated", huge, got, size)
			}
			if got, err := fileSize(h.FD()); err != nil || got != size {
				t.Errorf("size %d (%v), want %d", got, err, size)
			}
			h.Release()
			must(t, fx.Commit(context.Background(), "a", alice, false))
			if s := fx.Stats(); (s.HugeArenas == 1) != (huge && size >= 2*mib) {
				t.Errorf("huge %v, size %d: %d huge arenas", huge, size, s.HugeArenas)
			}
		}
	}
}

// Who fills without end drives out only what is their own, and what others have beyond their share.
func TestNobodyDrivesOutTheShareOfOthers(t *testing.T) {
	fx := newFixture(t, 10*mib)
	fx.fill("a", 3*mib, alice)
	fx.fill("b", mib, alice)
	for _, id := range []string{"x1", "x2", "x3", "x4"} {
		fx.fill(id, 3*mib, bob)
	}
	fx.wantEntries("a", "b", "x4")
	e, err := fx.Begin("y", bob)
	must(t, err)
	wantErr(t, e.Reserve(9*mib, bob), ErrNoSpace)
	fx.wantEntries("a", "b", "x4")
	must(t, fx.Drop("y", bob))
}

func TestMoreThanTheShareGoes(t *testing.T) {
	fx := newFixture(t, 10*mib)
	for _, id := range []string{"a", "b", "c"} {
		fx.fill(id, 3*mib, alice)
	}
	fx.fill("x", 3*mib, bob)
	fx.wantEntries("b", "c", "x")
	fx.fill("y", mib, bob)
	fx.wantEntries("c", "x", "y")
}

func TestTooManyStagingsAndArenas(t *testing.T) {
	fx := newFixture(t, 10*mib)
	for n := range MaxStagings {
		_, err := fx.Begin(fmt.Sprint("s", n), alice)
		must(t, err)
	}
	_, err := fx.Begin("one-more", alice)
	wantErr(t, err, ErrTooMany)
	e, err := fx.Begin("one-more", bob)
	must(t, err)
	must(t, e.MakeTensors(bob))
	for n := range MaxArenas + 1 {
		_, h, err := e.CreateArena(fmt.Sprint(n, ".safetensors"), bob)
		if n == MaxArenas {
			wantErr(t, err, ErrTooMany)
			break
		}
		must(t, err)
		h.Release()
	}
}
