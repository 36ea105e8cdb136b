package store

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// copies returns an entry's record and duplicates of its descriptors, as another daemon receives them.
func (fx *fixture) copies(id string) (schema.EntryRecord, []Passed) {
	fx.t.Helper()
	for _, r := range fx.Records(true) {
		if r.ID != id {
			continue
		}
		files, release, err := fx.Borrow(r)
		must(fx.t, err)
		defer release()
		for i := range files {
			fd, err := unix.FcntlInt(uintptr(files[i].FD), unix.F_DUPFD_CLOEXEC, 0)
			must(fx.t, err)
			files[i].FD = fd
		}
		return r, files
	}
	fx.t.Fatalf("no %s", id)
	return schema.EntryRecord{}, nil
}

// adoptions are entries of another daemon, checked.
func (fx *fixture) adoptions(from *fixture, ids ...string) (all []*Adoption) {
	fx.t.Helper()
	for _, id := range ids {
		r, files := from.copies(id)
		a, err := fx.NewAdoption(r, files)
		must(fx.t, err)
		all = append(all, a)
	}
	return all
}

func TestAdopt(t *testing.T) {
	from := newFixture(t, 64*mib)
	a, b := from.fill("a", mib, alice), from.fill("b", mib, bob)
	to := newFixture(t, 64*mib)
	must(t, b.SetPinned(bob, true))
	a.Hit()
	must(t, to.Adopt(to.adoptions(from, "a", "b")))
	to.wantEntries("a", "b")
	for _, e := range []*Entry{a, b} {
		got, err := to.Published(e.ID())
		must(t, err)
		want, have := e.Info(), got.Info()
		if want.Pinned != have.Pinned || want.Hits != have.Hits || want.Owner != have.Owner || want.Bytes != have.Bytes ||
			!want.LastUse.Equal(have.LastUse) || !e.Created().Equal(got.Created()) || got.Serial() != e.Serial() {
			t.Errorf("%+v, want %+v", have, want)
		}
	}
	c := to.fill("c", mib, alice)
	if c.Serial() <= b.Serial()+3 {
		t.Errorf("serial number %d was given out twice", c.Serial())
	}
	wantErr(t, to.Adopt(to.adoptions(from, "a")), ErrForeign)
}

// What the other daemon had room for may be too much here.
func TestAdoptTrims(t *testing.T) {
	from := newFixture(t, 64*mib)
	ids := []string{"a", "b", "c", "d"}
	for _, id := range ids {
		must(t, from.fill(id, mib, alice).SetPinned(alice, id == "a"))
	}
	to := newFixture(t, 3*mib+512*kib)
	must(t, to.Adopt(to.adoptions(from, ids...)))
	to.wantEntries("a", "c", "d")
	few := newFixture(t, 64*mib, func(o *Options) { o.MaxEntries = 1 })
	must(t, few.Adopt(few.adoptions(from, "b", "c")))
	few.wantEntries("c")
}

func TestAdoptRefusesWhatIsNotSo(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fill("a", mib, alice)
	replace := func(files []Passed, name string, fd int) []Passed {
		for i, f := range files {
			if f.Name == name {
				must(t, unix.Close(f.FD))
				files[i].FD = fd
			}
		}
		return files
	}
	memfd := func(size int64, seals int) int {
		fd, err := newMemfd(fx.os, "test")
		must(t, err)
		must(t, unix.Ftruncate(fd, size))
		must(t, fx.os.AddSeals(fd, seals))
		return fd
	}
	const name = "model.safetensors"
	for what, c := range map[string]struct {
		change func(*schema.EntryRecord, []Passed) []Passed
		want   error
		text   string
	}{
		"no memfd": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			return replace(f, name, fd)
		}, unix.EINVAL, name},
		"without seals": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			return replace(f, name, memfd(int64(mib), sizeSeals))
		}, ErrSeals, name},
		"another size": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			return replace(f, name, memfd(int64(mib)-1, baseSeals))
		}, schema.ErrInvalid, name},
		"empty manifest": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			return replace(f, ManifestName, memfd(0, baseSeals))
		}, schema.ErrMalformed, "empty"},
		"no structure": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			for i := range f {
				if f[i].Name == StructureName {
					must(t, unix.Close(f[i].FD))
					return append(f[:i], f[i+1:]...)
				}
			}
			return f
		}, ErrIncomplete, StructureName},
		"twice": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			return append(f, Passed{FileRecord: schema.FileRecord{Name: name, Arena: true}, FD: memfd(int64(mib), baseSeals)})
		}, ErrName, name},
		"unknown file": {func(_ *schema.EntryRecord, f []Passed) []Passed {
			return append(f, Passed{FileRecord: schema.FileRecord{Name: "x"}, FD: memfd(1, baseSeals)})
		}, ErrName, `"x"`},
		"another id": {func(r *schema.EntryRecord, f []Passed) []Passed { r.ID = "b"; return f }, schema.ErrInvalid, "b"},
	} {
		t.Run(what, func(t *testing.T) {
			r, files := fx.copies("a")
			a, err := fx.NewAdoption(r, c.change(&r, files))
			if a != nil || !errors.Is(err, ErrForeign) || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, %v", a, err)
			}
		})
	}
}

func TestFreezeHoldsChangesUp(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	_, h := fx.stage("b", mib, alice)
	must(t, fx.Freeze(context.Background()))
	wantErr(t, fx.Freeze(context.Background()), ErrBusy)
	fx.lease(e, 1).Release() // reading goes on
	results := make(chan error, 4)
	go func() { _, err := fx.Begin("c", alice); results <- err }()
	go func() { results <- e.SetPinned(alice, true) }()
	go func() { _, err := fx.OpenLock("a", alice); results <- err }()
	go func() { h.Release(); results <- nil }()
	if len(fx.Writers()) != 1 || fx.Stats().PinnedBytes != 0 {
		t.Error("something changed")
	}
	select {
	case err := <-results:
		t.Errorf("a change did not wait: %v", err)
	default:
	}
	fx.Thaw()
	for range 4 {
		must(t, <-results)
	}
	must(t, fx.Commit(context.Background(), "b", alice, false))
	fx.wantEntries("a", "b")
}

// A takeover does not begin in the middle of a commit, and gives up when one does not end.
func TestFreezeAwaitsCommits(t *testing.T) {
	fx := newFixture(t, 64*mib)
	_, h := fx.stage("a", mib, alice)
	e, files, err := fx.beginCommit("a", alice, false)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- fx.Freeze(ctx) }()
	cancel()
	wantErr(t, <-ended, ErrBusy)
	go func() { ended <- fx.Freeze(context.Background()) }()
	fx.mu.Lock()
	for _, f := range files {
		f.unref()
	}
	e.committing = false
	fx.changed.Broadcast()
	fx.mu.Unlock()
	must(t, <-ended)
	fx.Thaw()
	h.Release()
}

func TestSupersede(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	lease := fx.lease(e, 1)
	lock, err := fx.OpenLock("b", alice)
	must(t, err)
	staged, h := fx.stage("b", mib, alice)
	idle, h2 := fx.stage("c", mib, alice)
	h2.Release()
	let := make(chan string, 2)
	must(t, fx.Freeze(context.Background()))
	fx.Supersede(map[string]func(){"b": func() { let <- "lock" }}, map[*File]func(){h.File(): func() { let <- "arena" }})

	for what, change := range map[string]func() error{
		"begin":   func() error { _, err := fx.Begin("d", alice); return err },
		"lock":    func() error { _, err := fx.OpenLock("d", alice); return err },
		"commit":  func() error { return fx.Commit(context.Background(), "b", alice, false) },
		"evict":   func() error { return fx.Evict("a", alice) },
		"unlink":  func() error { return e.Unlink("", ManifestName, alice) },
		"pin":     func() error { return e.SetPinned(alice, true) },
		"drop":    func() error { return fx.Drop("b", alice) },
		"create":  func() error { _, _, err := staged.CreateArena("x.safetensors", alice); return err },
		"open":    func() error { _, err := h.File().Open(true, 1); return err },
		"reserve": func() error { return staged.Reserve(1, alice) },
		"look":    func() error { _, err := fx.Staging("b"); return err },
		"look in": func() error { _, err := idle.File("", ManifestName); return err },
		"miss":    func() error { _, err := fx.Published("x"); return err },
		"freeze":  func() error { return fx.Freeze(context.Background()) },
	} {
		if err := change(); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.WriteAt([]byte("late"), 0); err != nil {
		t.Error(err)
	}
	h.Release()
	if got := <-let; got != "arena" {
		t.Error(got)
	}
	lock.Release()
	if got := <-let; got != "lock" {
		t.Error(got)
	}
	if s := fx.Stats(); s.StagingBytes != 0 || s.Counters.FillsFailed != 0 {
		t.Errorf("%+v", s)
	}
	fx.lease(e, 2).Release()
	fx.Retire()
	if s := fx.Stats(); s.CachedBytes != 0 || s.DrainingBytes == 0 {
		t.Errorf("%+v", s)
	}
	lease.Release()
	if s := fx.Stats(); s.DrainingBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// The size of what another daemon still writes is the kernel's until that daemon has let go.
func TestAdoptedStagingGrows(t *testing.T) {
	from, to := newFixture(t, 64*mib), newFixture(t, 64*mib)
	e, h := from.stage("a", mib, alice)
	old, err := e.File("", StructureName)
	must(t, err)
	oldHandle, err := old.Open(true, 1)
	must(t, err)
	must(t, from.Freeze(context.Background()))
	must(t, to.Adopt(to.adoptions(from, "a")))
	f, err := to.mustStaging("a").File("", StructureName)
	must(t, err)
	there, err := f.Open(true, 1) // the other daemon's stand-in
	must(t, err)
	from.Supersede(nil, nil)
	_, err = oldHandle.WriteAt(make([]byte, 50), 100)
	must(t, err)
	if f.Size() != 150 {
		t.Errorf("size %d", f.Size())
	}
	oldHandle.Release()
	there.Release()
	h.Release()
	wantErr(t, to.Commit(context.Background(), "a", alice, false), schema.ErrInvalid) // 150 bytes, the manifest says 100
	must(t, f.Truncate(100))
	must(t, to.Commit(context.Background(), "a", alice, false))
	to.wantEntries("a")
}

func (fx *fixture) mustStaging(id string) *Entry {
	fx.t.Helper()
	e, err := fx.Staging(id)
	must(fx.t, err)
	return e
}
