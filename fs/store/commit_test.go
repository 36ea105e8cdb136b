package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
	"overmind-fs/schema/schematest"
)

func TestCommitPublishesSealed(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", 3*mib, alice)
	fx.wantEntries("a")
	if s := fx.Stats(); s.StagingBytes != 0 || s.CachedBytes < 3*mib || s.Counters.FillsCommitted != 1 {
		t.Errorf("stats %+v", s)
	}
	h := fx.lease(e, 7)
	defer h.Release()
	if _, err := unix.Pwrite(h.FD(), []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to a published arena: %v", err)
	}
	if err := unix.Ftruncate(h.FD(), 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate of a published arena: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(h.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("more seals: %v", err)
	}
	f := h.File()
	if _, err := f.Open(true, 0); !errors.Is(err, ErrReadOnly) {
		t.Errorf("open for writing: %v", err)
	}
	wantErr(t, f.Truncate(5), ErrReadOnly)
	_, _, err := e.CreateArena("x.safetensors", alice)
	wantErr(t, err, ErrReadOnly)
	wantErr(t, e.MakeTensors(alice), ErrReadOnly)
}

func TestCommitWaitsForWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture(t, 64*mib, func(o *Options) { o.CommitWait = time.Minute })
		_, h := fx.stage("a", mib, alice)
		time.AfterFunc(30*time.Second, h.Release)
		start := time.Now()
		must(t, fx.Commit(context.Background(), "a", alice, false))
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("waited %v", d)
		}
	})
}

func TestCommitRefusesOpenWriters(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, h := fx.stage("a", mib, alice)
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrWriters)
	if e.State() != Staging {
		t.Error("the staging is gone")
	}
	// It can be written on, and committed later.
	if _, err := h.WriteAt([]byte("more"), 0); err != nil {
		t.Error(err)
	}
	h.Release()
	must(t, fx.Commit(context.Background(), "a", alice, false))
}

func TestCommitWaitsForMappings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture(t, 64*mib)
		_, h := fx.stage("a", mib, alice)
		fd, err := unix.Dup(h.FD())
		must(t, err)
		h.Release()
		mem, err := unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		must(t, unix.Close(fd))
		wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrBusy)
		fx.wantEntries()
		time.AfterFunc(fx.opts.CommitWait/2, func() { _ = unix.Munmap(mem) })
		must(t, fx.Commit(context.Background(), "a", alice, false))
	})
}

func TestCommitChecksManifest(t *testing.T) {
	encode := func(change func(*schema.Manifest)) []byte {
		m := manifestFor("a", mib)
		change(m)
		return schematest.Encode(m)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"empty":     {nil, schema.ErrMalformed},
		"garbage":   {make([]byte, 100), schema.ErrMalformed},
		"other id":  {encode(func(m *schema.Manifest) { m.ID = "b" }), schema.ErrInvalid},
		"arena":     {encode(func(m *schema.Manifest) { m.Arenas[0].Nbytes = mib + 1 }), schema.ErrInvalid},
		"structure": {encode(func(m *schema.Manifest) { m.StructureNbytes = 99 }), schema.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t, 64*mib)
			e, h := fx.stage("a", mib, alice)
			h.Release()
			must(t, e.Unlink("", ManifestName, alice))
			write(t, e, ManifestName, c.data)
			wantErr(t, fx.Commit(context.Background(), "a", alice, false), c.want)
			fx.wantEntries()
			must(t, fx.Drop("a", alice))
			if s := fx.Stats(); s.StagingBytes != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestCommitNeedsEverything(t *testing.T) {
	fx := newFixture(t, 64*mib)
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrNotFound)
	e, h := fx.stage("a", mib, alice)
	h.Release()
	must(t, e.Unlink("", StructureName, alice))
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrIncomplete)
	write(t, e, StructureName, make([]byte, 100))
	_, h, err := e.CreateArena("unsized.safetensors", alice)
	must(t, err)
	h.Release()
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrIncomplete)
	must(t, e.Unlink(TensorsName, "unsized.safetensors", alice))
	must(t, fx.Commit(context.Background(), "a", alice, false))
}

// A client with a passthrough handle can write to the memfd before it has a size; the daemon does not see that.
func TestCommitSeesWhatTheDaemonDidNot(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, h := fx.stage("a", mib, alice)
	h.Release()
	_, h, err := e.CreateArena("grown.safetensors", alice)
	must(t, err)
	must(t, unix.Ftruncate(h.FD(), 12345))
	h.Release()
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrIncomplete)
}

func TestCommitReplaces(t *testing.T) {
	fx := newFixture(t, 64*mib)
	old := fx.fill("a", mib, alice)
	must(t, old.SetPinned(alice, true))
	lease := fx.lease(old, 1)

	_, h := fx.stage("a", 2*mib, alice)
	h.Release()
	wantErr(t, fx.Commit(context.Background(), "a", alice, true), ErrExists)
	must(t, fx.Commit(context.Background(), "a", alice, false))
	fx.wantEntries("a")
	e, err := fx.Published("a")
	must(t, err)
	if e == old || old.State() != Gone {
		t.Error("the old entry is still there")
	}
	if !e.Info().Pinned {
		t.Error("the pin was lost")
	}
	s := fx.Stats()
	if s.DrainingBytes != mib || s.Counters.Evictions[ReasonReplaced] != 1 {
		t.Errorf("stats %+v", s)
	}
	lease.Release()
	if s := fx.Stats(); s.DrainingBytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

// refill stages an entry whose manifest is changed, and commits it.
func (fx *fixture) refill(id string, c Caller, change func(*schema.Manifest)) error {
	fx.t.Helper()
	e, h := fx.stage(id, mib, c)
	h.Release()
	must(fx.t, e.Unlink("", ManifestName, c))
	m := manifestFor(id, mib)
	change(m)
	write(fx.t, e, ManifestName, schematest.Encode(m))
	return fx.Commit(context.Background(), id, c, false)
}

func TestCommitKnowsSuperseded(t *testing.T) {
	fx := newFixture(t, 64*mib)
	fx.fill("a", mib, alice)
	must(t, fx.refill("a", alice, func(m *schema.Manifest) { m.CreatedNS = 2 }))
	if s := fx.Stats(); s.Counters.Evictions[ReasonSuperseded] != 1 || s.Counters.Evictions[ReasonReplaced] != 0 {
		t.Errorf("stats %+v", s)
	}
}

// A newer fingerprint of the same loader and arguments has another id, and the older entry goes, leased or not.
func TestCommitSupersedesOtherIDs(t *testing.T) {
	fx := newFixture(t, 64*mib)
	for id, scope := range map[string]string{"old": "s", "leased": "s", "pinned": "s", "other": "t", "none": ""} {
		must(t, fx.refill(id, alice, func(m *schema.Manifest) { m.Scope = scope }))
	}
	must(t, fx.refill("bobs", bob, func(m *schema.Manifest) { m.Scope = "s" }))
	pinned, err := fx.Published("pinned")
	must(t, err)
	must(t, pinned.SetPinned(alice, true))
	leased, err := fx.Published("leased")
	must(t, err)
	lease := fx.lease(leased, 1)
	must(t, fx.refill("new", alice, func(m *schema.Manifest) { m.Scope, m.CreatedNS = "s", 2 }))
	fx.wantEntries("bobs", "new", "none", "other", "pinned")
	if s := fx.Stats(); s.Counters.Evictions[ReasonSuperseded] != 2 || s.DrainingBytes != mib {
		t.Errorf("stats %+v", s)
	}
	lease.Release()
	// One that is older supersedes nothing, and nothing is what an entry without a scope supersedes.
	must(t, fx.refill("late", alice, func(m *schema.Manifest) { m.Scope, m.CreatedNS = "s", 1 }))
	must(t, fx.refill("none2", alice, func(m *schema.Manifest) { m.Scope, m.CreatedNS = "", 3 }))
	fx.wantEntries("bobs", "late", "new", "none", "none2", "other", "pinned")
}

func TestSupersededMakesRoomAmongEntries(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) { o.MaxEntries = 2 })
	must(t, fx.refill("kept", alice, func(m *schema.Manifest) { m.Scope = "t" }))
	must(t, fx.refill("old", alice, func(*schema.Manifest) {}))
	must(t, fx.refill("new", alice, func(m *schema.Manifest) { m.CreatedNS = 2 }))
	fx.wantEntries("kept", "new")
}

func TestOwners(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	wantErr(t, fx.Evict("a", bob), ErrNotOwner)
	wantErr(t, e.SetPinned(bob, true), ErrNotOwner)
	wantErr(t, e.Unlink("", ManifestName, bob), ErrNotOwner)
	wantErr(t, e.RemoveDir(TensorsName, bob), ErrNotOwner)

	_, h := fx.stage("a", mib, bob)
	h.Release()
	wantErr(t, fx.Commit(context.Background(), "a", alice, false), ErrNotOwner) // bob's staging
	wantErr(t, fx.Commit(context.Background(), "a", bob, false), ErrNotOwner)   // alice's entry
	wantErr(t, fx.Drop("a", alice), ErrNotOwner)
	must(t, fx.Drop("a", root))
	must(t, e.SetPinned(root, true))
	must(t, fx.Evict("a", root))
	fx.wantEntries()
}

func TestMaxEntries(t *testing.T) {
	fx := newFixture(t, 64*mib, func(o *Options) { o.MaxEntries = 2 })
	fx.fill("a", mib, alice)
	b := fx.fill("b", mib, alice)
	fx.fill("c", mib, alice)
	fx.wantEntries("b", "c")
	must(t, b.SetPinned(alice, true))
	c, _ := fx.Published("c")
	lease := fx.lease(c, 0)
	_, h := fx.stage("d", mib, alice)
	h.Release()
	wantErr(t, fx.Commit(context.Background(), "d", alice, false), ErrNoSpace)
	fx.wantEntries("b", "c")
	fx.fill("c", mib, alice) // replacing needs no further entry
	lease.Release()
	must(t, fx.Commit(context.Background(), "d", alice, false))
	fx.wantEntries("b", "d")
}
