package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// expiring runs a test with a store whose entries expire after a minute, on a clock that jumps ahead when all wait.
func expiring(t *testing.T, test func(t *testing.T, fx *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture(t, 64*mib, func(o *Options) { o.TTL, o.Now = time.Minute, time.Now })
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); fx.ExpireIdle(ctx) }()
		test(t, fx)
		stop()
		<-done
	})
}

// pass lets time go by, and all that is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestIdleEntriesExpire(t *testing.T) {
	expiring(t, func(t *testing.T, fx *fixture) {
		pass(time.Hour) // with nothing there
		fx.fill("a", mib, alice)
		pass(30 * time.Second)
		b := fx.fill("b", mib, alice)
		pass(29 * time.Second)
		fx.wantEntries("a", "b")
		pass(2 * time.Second)
		fx.wantEntries("b")
		b.Hit()
		pass(59 * time.Second)
		fx.wantEntries("b")
		pass(2 * time.Second)
		fx.wantEntries()
		if s := fx.Stats(); s.Counters.Evictions[ReasonTTL] != 2 || s.CachedBytes != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestLeasedAndPinnedDoNotExpire(t *testing.T) {
	expiring(t, func(t *testing.T, fx *fixture) {
		lease := fx.lease(fx.fill("leased", mib, alice), 1)
		pinned := fx.fill("pinned", mib, alice)
		must(t, pinned.SetPinned(alice, true))
		pass(time.Hour)
		fx.wantEntries("leased", "pinned")
		// Their time begins when they are let go.
		lease.Release()
		pass(59 * time.Second)
		fx.wantEntries("leased", "pinned")
		must(t, pinned.SetPinned(alice, false))
		pass(2 * time.Second)
		fx.wantEntries("pinned")
		pass(time.Minute)
		fx.wantEntries()
	})
}

// While an entry is used again and again, the clock is looked at once in a minute, not at each use.
func TestExpiryDoesNotPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks, hits atomic.Int64
		fx := newFixture(t, 64*mib, func(o *Options) {
			o.TTL, o.Now = time.Minute, func() time.Time { looks.Add(1); return time.Now() }
		})
		e := fx.fill("a", mib, alice)
		ctx, stop := context.WithTimeout(context.Background(), time.Hour)
		defer stop()
		var user sync.WaitGroup
		user.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Second) {
				hits.Add(1)
				e.Hit()
			}
		})
		looks.Store(0)
		fx.ExpireIdle(ctx)
		fx.wantEntries("a")
		if own := looks.Load() - hits.Load(); own > 70 {
			t.Errorf("the clock was read %d times in an hour", own)
		}
		user.Wait()
	})
}
