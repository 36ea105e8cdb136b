package store

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestEvictWhileLeasedDrains(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	first, second := fx.lease(e, 1), fx.lease(e, 2)
	must(t, fx.Evict("a", alice))
	wantErr(t, fx.Evict("a", alice), ErrNotFound)
	fx.wantEntries()
	if s := fx.Stats(); s.CachedBytes != 0 || s.DrainingBytes != mib {
		t.Errorf("stats %+v", s)
	}
	if _, err := first.File().Open(false, 0); err == nil {
		t.Error("an evicted arena can be opened")
	}
	first.Release()
	first.Release() // has no effect
	if s := fx.Stats(); s.DrainingBytes != mib {
		t.Errorf("stats %+v", s)
	}
	if n, err := fileSize(second.FD()); err != nil || n != mib {
		t.Errorf("the memory is gone under a lease: %d, %v", n, err)
	}
	second.Release()
	if s := fx.Stats(); s.DrainingBytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Draining bytes are memory that is in use, so a fill cannot have them.
func TestDrainingBytesCountAgainstTheBudget(t *testing.T) {
	fx := newFixture(t, 10*mib)
	e := fx.fill("a", 6*mib, alice)
	lease := fx.lease(e, 1)
	must(t, fx.Evict("a", alice))
	st, err := fx.Begin("b", alice)
	must(t, err)
	must(t, st.MakeTensors(alice))
	f, h, err := st.CreateArena("model.safetensors", alice)
	must(t, err)
	defer h.Release()
	wantErr(t, f.Truncate(6*mib), ErrNoSpace)
	lease.Release()
	must(t, f.Truncate(6*mib))
}

func TestUnlinkLeavesTombstone(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	wantErr(t, e.RemoveDir(TensorsName, alice), ErrNotEmpty)
	if e.State() != Published {
		t.Fatal("a refused rmdir took the entry out")
	}
	must(t, e.Unlink(StoragesName, "0.w", alice))
	if e.State() != Tombstone || e.Readable() {
		t.Fatalf("state %d", e.State())
	}
	if s := fx.Stats(); s.CachedBytes != 0 || s.Entries != 0 || s.Counters.Evictions[ReasonRemoved] != 1 {
		t.Errorf("stats %+v", s)
	}
	fx.wantEntries("a")
	// The rest is there to be removed, not to be opened.
	f, err := e.File("", ManifestName)
	must(t, err)
	_, err = f.Open(false, 0)
	wantErr(t, err, ErrNotFound)

	must(t, e.Unlink("", ManifestName, alice))
	wantErr(t, e.Unlink("", ManifestName, alice), ErrNotFound)
	_, err = e.File("", ManifestName)
	wantErr(t, err, ErrNotFound)
	must(t, e.RemoveDir(StoragesName, alice))
	wantErr(t, e.RemoveDir(TensorsName, alice), ErrNotEmpty)
	must(t, e.Unlink(TensorsName, "model.safetensors", alice))
	must(t, e.RemoveDir(TensorsName, alice))
	if e.Shows("", StoragesName) || e.HasTensors() {
		t.Error("removed folders still show")
	}
	must(t, e.Unlink("", StructureName, alice))
	must(t, e.Unlink("", JSONName, alice))
	must(t, fx.Evict("a", alice))
	fx.wantEntries()
}

func TestTombstoneExpires(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e := fx.fill("a", mib, alice)
	must(t, e.Unlink("", ManifestName, alice))
	fx.now = fx.now.Add(TombstoneLife - time.Second)
	fx.wantEntries("a")
	fx.now = fx.now.Add(2 * time.Second)
	fx.wantEntries()
	_, err := fx.Published("a")
	wantErr(t, err, ErrNotFound)
}

func TestCommitReplacesTombstone(t *testing.T) {
	fx := newFixture(t, 64*mib)
	old := fx.fill("a", mib, alice)
	must(t, old.Unlink("", ManifestName, alice))
	e := fx.fill("a", mib, alice)
	got, err := fx.Published("a")
	must(t, err)
	if got != e {
		t.Error("the tombstone hides the new entry")
	}
}

// The rmdir at the end of an "rm -r" does not remove what was committed meanwhile.
func TestRemovalLeavesWhatCameMeanwhile(t *testing.T) {
	remover := Caller{UID: alice.UID, PID: 77}
	removed := func(t *testing.T) *fixture {
		fx := newFixture(t, 64*mib)
		must(t, fx.fill("a", mib, alice).Unlink("", ManifestName, remover))
		fx.fill("a", mib, alice)
		return fx
	}
	t.Run("tombstone", func(t *testing.T) {
		fx := removed(t)
		wantErr(t, fx.Evict("a", remover), ErrNotEmpty)
		fx.wantEntries("a")
		must(t, fx.Evict("a", remover)) // who asks again means the new one
	})
	t.Run("replaced before the first unlink", func(t *testing.T) {
		fx := newFixture(t, 64*mib)
		old := fx.fill("a", mib, alice)
		fx.fill("a", mib, alice)
		wantErr(t, old.Unlink("", ManifestName, remover), ErrNotFound)
		wantErr(t, fx.Evict("a", remover), ErrNotEmpty)
		fx.wantEntries("a")
	})
	t.Run("somebody else", func(t *testing.T) {
		must(t, removed(t).Evict("a", alice))
	})
	t.Run("much later", func(t *testing.T) {
		fx := removed(t)
		fx.now = fx.now.Add(TombstoneLife + time.Second)
		must(t, fx.Evict("a", remover))
	})
	t.Run("the same process fills it", func(t *testing.T) {
		fx := newFixture(t, 64*mib)
		must(t, fx.fill("a", mib, alice).Unlink("", ManifestName, alice))
		fx.fill("a", mib, alice)
		must(t, fx.Evict("a", alice))
	})
}

func TestUnlinkInStaging(t *testing.T) {
	fx := newFixture(t, 64*mib)
	e, h := fx.stage("a", mib, alice)
	wantErr(t, e.RemoveDir(TensorsName, alice), ErrNotEmpty)
	must(t, e.Unlink(TensorsName, "model.safetensors", alice))
	if s := fx.Stats(); s.DrainingBytes != mib {
		t.Errorf("stats %+v", s)
	}
	h.Release()
	must(t, e.RemoveDir(TensorsName, alice))
	must(t, e.Unlink("", ManifestName, alice))
	must(t, e.Unlink("", StructureName, alice))
	if s := fx.Stats(); s.DrainingBytes+s.StagingBytes != 0 {
		t.Errorf("stats %+v", s)
	}
	must(t, fx.Drop("a", alice))
}

func TestLockRelease(t *testing.T) {
	fx := newFixture(t, 64*mib)
	open := func(c Caller) *LockHandle {
		h, err := fx.OpenLock("a", c)
		must(t, err)
		return h
	}
	staged := func(want bool) {
		t.Helper()
		if got := len(fx.StagingIDs()) == 1; got != want {
			t.Fatalf("staging is there: %v", got)
		}
	}
	begin := func(c Caller) {
		t.Helper()
		_, h := fx.stage("a", mib, c)
		h.Release()
	}
	// The last handle of the filler drops it, handles of others do not.
	mine, mine2, other := open(alice), open(alice), open(bob)
	begin(alice)
	other.Release()
	staged(true)
	mine.Release()
	mine.Release()
	staged(true)
	mine2.Release()
	staged(false)
	if s := fx.Stats(); s.StagingBytes != 0 || s.Counters.FillsFailed != 1 {
		t.Errorf("stats %+v", s)
	}
	// A late release of an earlier handle does not hit the next filler.
	late := open(alice)
	holder := open(bob)
	begin(bob)
	late.Release()
	staged(true)
	// A committed entry stays.
	must(t, fx.Commit(context.Background(), "a", bob, false))
	holder.Release()
	fx.wantEntries("a")
	// Without a lock there is nothing to wait for.
	begin(alice)
	open(alice).Release()
	staged(true)
	must(t, fx.Drop("a", alice))
	if n := len(fx.LockIDs()); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	_, err := fx.OpenLock("../a", alice)
	wantErr(t, err, ErrName)
}

func TestFillerDiesWhileCommitting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture(t, 64*mib)
		lock, err := fx.OpenLock("a", alice)
		must(t, err)
		_, h := fx.stage("a", mib, alice)
		done := make(chan error, 1)
		go func() { done <- fx.Commit(context.Background(), "a", alice, false) }()
		synctest.Wait() // the commit waits for the writer
		lock.Release()
		if n := len(fx.StagingIDs()); n != 1 {
			t.Errorf("%d stagings during the commit", n)
		}
		wantErr(t, <-done, ErrWriters)
		if n := len(fx.StagingIDs()); n != 0 {
			t.Error("the staging of a dead filler stays")
		}
		h.Release()
	})
}
