package store

import (
	"context"
	"fmt"
)

// A takeover by another daemon goes Freeze, then either Thaw or Supersede. What is frozen can be read; whatever would
// change names, pins, locks or the set of writers waits. Bytes may still be written through open handles: the memory is
// shared with the other daemon.

// enter locks the store for a change, and returns ErrSuperseded, without the lock, when changes belong elsewhere.
func (s *Store) enter() error {
	s.mu.Lock()
	s.awaitThaw()
	if s.superseded {
		s.mu.Unlock()
		return ErrSuperseded
	}
	return nil
}

func (s *Store) awaitThaw() {
	for s.frozen {
		s.changed.Wait()
	}
}

// Succeed is called before the daemon in process pid hands its place over: it will open our locks for those of its
// clients that have its own open, and keep them until these are released.
func (s *Store) Succeed(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.predecessor = pid
}

// Freeze waits until no commit and no allocation is under way and then holds all changes up. The error wraps ErrBusy
// when ctx ended first or when the store is frozen already, ErrSuperseded and ErrClosed when it is too late.
func (s *Store) Freeze(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return ErrClosed
		case s.superseded:
			return ErrSuperseded
		case s.frozen:
			return fmt.Errorf("%w: another takeover", ErrBusy)
		case ctx.Err() != nil:
			return fmt.Errorf("%w: commits or allocations do not end", ErrBusy)
		case !s.underWay():
			s.frozen = true
			return nil
		}
		s.changed.Wait()
	}
}

func (s *Store) underWay() bool {
	for _, e := range s.staging {
		if e.committing {
			return true
		}
	}
	for f := range s.files {
		if f.busy {
			return true
		}
	}
	return false
}

// Thaw lets everything go on that waited; it does nothing to a store that is not frozen.
func (s *Store) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = false
	s.changed.Broadcast()
}

// Writers returns the files that are open for writing, of stagings all.
func (s *Store) Writers() []*File {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*File
	for _, e := range s.staging {
		e.allFiles(func(f *File) {
			if f.writers > 0 {
				out = append(out, f)
			}
		})
	}
	return out
}

// Supersede ends a freeze: from now on every change is refused with ErrSuperseded. Entries stay readable until Retire,
// open handles work as before. locks and writers stand for our locks, by id, and for our files that are open for
// writing, in the other daemon; each function is called, once, when the last of those handles is released.
func (s *Store) Supersede(locks map[string]func(), writers map[*File]func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stands = map[any]func(){}
	for id, done := range locks {
		s.stands[id] = done
	}
	for f, done := range writers {
		s.stands[f] = done
	}
	s.frozen, s.superseded = false, true
	for _, e := range s.staging {
		s.forgetStaging(e)
	}
	s.changed.Broadcast()
}

// outgrown is called when a handle for writing was released.
func (s *Store) outgrown(f *File) {
	if s.superseded && f.writers == 0 {
		s.letGo(f)
		if s.staging[f.entry.id] == f.entry {
			s.forgetStaging(f.entry)
		}
	}
}

// letGo calls what stands for a lock or a file. It closes a file of the other daemon's mount, which may take its time.
func (s *Store) letGo(what any) {
	if done := s.stands[what]; done != nil {
		delete(s.stands, what)
		go done()
	}
}

// forgetStaging gives up a staging that nobody writes here any more; the other daemon has it.
func (s *Store) forgetStaging(e *Entry) {
	written := false
	e.allFiles(func(f *File) { written = written || f.writers > 0 })
	if !written {
		e.moved = true
		s.detach(e)
		delete(s.staging, e.id)
	}
}

// Retire lets go of all entries of a superseded store, so that memory that the other daemon evicts is free when the
// last handle here is released.
func (s *Store) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		s.detach(e)
	}
	clear(s.entries)
	clear(s.tombs)
}
