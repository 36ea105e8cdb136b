package store

import (
	"errors"
	"strings"
	"testing"
)

func TestPressureTakesAQuarterOfWhatIsIdle(t *testing.T) {
	fx := newFixture(t, 64*mib)
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		fx.fill(id, mib, alice)
	}
	if n := fx.Relieve("test"); n != 2 {
		t.Errorf("%d of 8 entries went", n)
	}
	fx.wantEntries("c", "d", "e", "f", "g", "h")
	if s := fx.Stats(); s.Counters.Evictions[ReasonPressure] != 2 || s.Counters.PressureEvents != 1 {
		t.Errorf("stats %+v", s)
	}
	for range 20 {
		fx.Relieve("test")
	}
	fx.wantEntries() // it ends with the last one, also when that is less than a quarter
}

func TestPressureLeavesWhatIsInUse(t *testing.T) {
	fx := newFixture(t, 64*mib)
	must(t, fx.fill("pinned", mib, alice).SetPinned(alice, true))
	lease := fx.lease(fx.fill("leased", mib, alice), 1)
	defer lease.Release()
	for range 3 {
		if n := fx.Relieve("test"); n != 0 {
			t.Errorf("%d entries went", n)
		}
	}
	fx.wantEntries("leased", "pinned")
	if n := strings.Count(fx.log.String(), "no entry is idle"); n != 1 {
		t.Errorf("said %d times:\n%s", n, fx.log)
	}
	fx.fill("idle", mib, alice)
	if n := fx.Relieve("test"); n != 1 {
		t.Errorf("%d entries went", n)
	}
}

// Processes that thrash at a limit of their own, while there is memory for everybody else, cost the cache nothing.
func TestPressureOfOthersTakesNothing(t *testing.T) {
	scarce, unknown := false, error(nil)
	fx := newFixture(t, 64*mib, func(o *Options) { o.OS.Scarce = func() (bool, error) { return scarce, unknown } })
	fx.fill("a", mib, alice)
	if n := fx.Relieve("test"); n != 0 {
		t.Errorf("%d entries went", n)
	}
	unknown = errors.New("no /proc")
	if n := fx.Relieve("test"); n != 1 {
		t.Errorf("%d entries went when nothing but the pressure was known", n)
	}
}
