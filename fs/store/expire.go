package store

import (
	"context"
	"time"
)

// ExpireIdle evicts entries that have been idle for Options.TTL, until ctx ends. It sleeps from one expiry to the next,
// and while there is nothing that could expire. Without a TTL it returns at once.
func (s *Store) ExpireIdle(ctx context.Context) {
	if s.opts.TTL <= 0 {
		return
	}
	for {
		var expiry <-chan time.Time
		var idle <-chan struct{}
		if wait, any := s.expire(); any {
			expiry = time.After(wait)
		} else {
			// Only now: what becomes idle later than an entry that is waited for also expires later.
			idle = s.becameIdle
		}
		select {
		case <-expiry:
		case <-idle:
		case <-ctx.Done():
			return
		}
	}
}

// mayExpire wakes ExpireIdle if it waits for an entry that can expire.
func (s *Store) mayExpire() {
	select {
	case s.becameIdle <- struct{}{}:
	default:
	}
}

// expire evicts what has been idle for too long. It returns the time to the next expiry, or that none is in sight.
func (s *Store) expire() (wait time.Duration, any bool) {
	if err := s.enter(); err != nil {
		return 0, false // another daemon has the entries
	}
	defer s.mu.Unlock()
	select {
	case <-s.becameIdle: // seen below
	default:
	}
	now := s.opts.Now()
	for _, e := range s.idle() {
		left := s.opts.TTL - now.Sub(e.idleSince())
		if left <= 0 {
			s.evict(e, ReasonTTL)
		} else if !any || left < wait {
			wait, any = left, true
		}
	}
	return wait, any
}
