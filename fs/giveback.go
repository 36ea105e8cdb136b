package fs

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// giveBackAfter is how long nothing may have been worked on.
const giveBackAfter = 3 * time.Second

// giveBack returns memory to the system that the daemon does not use any more, once after each burst of work. Go by itself
// returns it as more is allocated, which an idle daemon does not do: what ten thousand fills took would stay.
type giveBack struct {
	after time.Duration
	free  func()

	mu    sync.Mutex
	timer *time.Timer
	off   bool
}

func newGiveBack() *giveBack { return &giveBack{after: giveBackAfter, free: freeMemory} }

// freeMemory collects twice, since what is in a sync.Pool, as the buffers of requests, goes with the second collection.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}

// worked is called after work that takes memory.
func (g *giveBack) worked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.off:
	case g.timer == nil:
		g.timer = time.AfterFunc(g.after, g.free)
	default:
		g.timer.Reset(g.after)
	}
}

// stop is called when the mount is gone.
func (g *giveBack) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.off = true
	if g.timer != nil {
		g.timer.Stop()
	}
}
