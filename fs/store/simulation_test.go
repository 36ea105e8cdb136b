package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Several clients do random things at once. Whatever they meet, the invariants hold, nothing exceeds the budget, and
// at the end every byte comes back.
func TestSimulation(t *testing.T) {
	const (
		clients = 8
		steps   = 150
		budget  = 24 << 20
	)
	fx := newFixture(t, budget, func(o *Options) {
		o.MaxEntries = 5
		o.CommitWait = 5 * time.Millisecond
		o.Now = time.Now
		o.TTL = 20 * time.Millisecond
	})
	ctx, stop := context.WithCancel(context.Background())
	var expiry sync.WaitGroup
	expiry.Go(func() { fx.ExpireIdle(ctx) })
	defer expiry.Wait()
	defer stop()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1))
			who := Caller{UID: uint32(1000 + c%3), PID: 100 + c}
			var leases []*Handle
			for range steps {
				id := fmt.Sprint("e", rng.IntN(6))
				switch rng.IntN(9) {
				case 0, 1, 2:
					simulateFill(fx, rng, id, who)
				case 3, 4:
					if e, err := fx.Published(id); err == nil {
						e.Hit()
						if f, err := e.File(TensorsName, "model.safetensors"); err == nil {
							if h, err := f.Open(false, who.PID); err == nil {
								leases = append(leases, h)
							}
						}
						if f, err := e.File("", StructureName); err == nil {
							if h, err := f.Open(false, who.PID); err == nil {
								leases = append(leases, h)
							}
						}
					}
				case 5:
					_ = fx.Evict(id, who)
				case 6:
					if e, err := fx.Published(id); err == nil {
						_ = e.Unlink("", ManifestName, who)
						_ = e.SetPinned(who, rng.IntN(2) == 0)
					}
				case 7:
					if n := len(leases); n > 0 {
						simulateRead(t, leases[n-1])
						leases[n-1].Release()
						leases = leases[:n-1]
					}
				case 8:
					if rng.IntN(5) == 0 {
						fx.Relieve("simulation")
					}
				}
				if err := fx.Check(); err != nil {
					t.Error(err)
					return
				}
				if s := fx.Stats(); s.CachedBytes+s.StagingBytes+s.DrainingBytes > budget || s.Entries > 5 {
					t.Errorf("over the limit: %+v", s)
					return
				}
			}
			for _, h := range leases {
				simulateRead(t, h)
				h.Release()
			}
		})
	}
	wg.Wait()
	if linked.Load() == 0 {
		t.Error("nothing was linked")
	}
	made := uint64(0)
	for _, why := range []Reason{ReasonRoom, ReasonTTL, ReasonPressure} {
		made += fx.Stats().Counters.Evictions[why]
	}
	if s := fx.Stats(); s.Counters.FillsCommitted == 0 || made == 0 {
		t.Errorf("nothing happened: %+v", s)
	}
}

// structureOf is what simulated entries of that id have; no two ids have the same.
func structureOf(id string) []byte { return bytes.Repeat([]byte(id[len(id)-1:]), 100) }

// simulateRead checks that a structure.pkl, packed or not, is that of its entry, also when this has left long since.
func simulateRead(t *testing.T, h *Handle) {
	if h.File().Name() != StructureName {
		return
	}
	got := make([]byte, 100)
	if err := readFull(h.FD(), got, h.Base()); err != nil || !bytes.Equal(got, structureOf(h.File().Entry().ID())) {
		t.Errorf("structure.pkl of %s: %q, %v", h.File().Entry().ID(), got, err)
	}
}

var linked atomic.Int64 // fills of simulateLink

// simulateLink completes a staging with the arena of another entry, if it gets one.
func simulateLink(fx *fixture, rng *rand.Rand, e *Entry, who Caller) bool {
	from, err := fx.Published(fmt.Sprint("e", rng.IntN(6)))
	if err != nil {
		return false
	}
	f, err := from.File(TensorsName, arenaName)
	if err != nil {
		return false
	}
	if f, err = e.Link(f, arenaName, who); err != nil {
		return false
	}
	for name, data := range map[string][]byte{
		StructureName: structureOf(e.ID()), ManifestName: encodedManifest(e.ID(), f.Size()),
	} {
		if _, h, err := e.CreateBlob(name, who); err == nil {
			_, _ = h.WriteAt(data, 0) // where it does not fit, the commit fails
			h.Release()
		}
	}
	linked.Add(1)
	return true
}

func simulateFill(fx *fixture, rng *rand.Rand, id string, who Caller) {
	e, err := fx.Begin(id, who)
	if err != nil {
		return
	}
	drop := func() {
		if err := fx.Drop(id, who); err != nil && !errors.Is(err, ErrNotFound) {
			fx.t.Error(err)
		}
	}
	if err := e.MakeTensors(who); err != nil {
		fx.t.Error(err)
		return
	}
	if rng.IntN(3) == 0 && simulateLink(fx, rng, e, who) {
		if fx.Commit(context.Background(), id, who, false) != nil {
			drop()
		}
		return
	}
	f, h, err := e.CreateArena("model.safetensors", who)
	if err != nil {
		fx.t.Error(err)
		return
	}
	size := rng.Uint64N(8*mib) + 1
	if rng.IntN(2) == 0 && e.Reserve(size+rng.Uint64N(mib), who) != nil {
		h.Release()
		drop()
		return
	}
	if f.Truncate(size) != nil || rng.IntN(10) == 0 {
		h.Release()
		drop()
		return
	}
	for name, data := range map[string][]byte{StructureName: structureOf(id), ManifestName: encodedManifest(id, size)} {
		_, bh, err := e.CreateBlob(name, who)
		if err == nil {
			_, err = bh.WriteAt(data, 0)
			bh.Release()
		}
		if err != nil {
			h.Release()
			drop()
			return
		}
	}
	if rng.IntN(10) == 0 {
		time.AfterFunc(time.Millisecond, h.Release)
	} else {
		h.Release()
	}
	if fx.Commit(context.Background(), id, who, false) != nil {
		h.Release()
		drop()
	}
}
