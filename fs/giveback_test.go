package fs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Once after each burst, and never when nothing was done.
func TestGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		g := &giveBack{after: 3 * time.Second, free: func() { freed.Add(1) }}
		want := func(n int32) {
			t.Helper()
			synctest.Wait()
			if got := freed.Load(); got != n {
				t.Errorf("freed %d times, want %d", got, n)
			}
		}
		time.Sleep(time.Hour)
		want(0)
		for range 10 {
			g.worked()
			time.Sleep(2 * time.Second)
		}
		want(0)
		time.Sleep(2 * time.Second)
		want(1)
		time.Sleep(time.Hour)
		want(1)
		g.worked()
		g.stop()
		g.worked()
		time.Sleep(time.Hour)
		want(1)
	})
}
