package store

import (
	"fmt"
	"sort"

	"github.com/dustin/go-humanize"
)

// memoryMargin is left free by every allocation, in bytes.
const memoryMargin = 64 << 20

func (s *Store) used() uint64 {
	return s.bytes[inStaging] + s.bytes[inCache] + s.bytes[inDraining] + s.promised
}

// reserve makes sure that n more bytes fit into the budget and, if look is set, into the free memory, evicting idle
// entries where they do not, for the sake of user uid. When they would not fit even then, nothing is evicted. The caller
// then counts the bytes, without letting go of s.mu in between.
func (s *Store) reserve(uid uint32, n uint64, look bool, what string) error {
	if s.closed {
		return ErrClosed
	}
	if n > s.opts.MaxBytes {
		return s.refuse(n, what, "more than the whole budget", 0)
	}
	missing := shortfall(s.used()+n, s.opts.MaxBytes)
	cause, short := "budget", false
	if look {
		room, err := s.os.Headroom()
		if err != nil {
			s.log.Warn("free memory is unknown", "error", err)
		} else if m := shortfall(n+s.pending+s.promised+memoryMargin, room); m > missing {
			missing, cause, short = m, fmt.Sprintf("free memory, %s are left", humanize.IBytes(room)), true
		}
	}
	if missing == 0 {
		return nil
	}
	victims, sum := s.victims(s.evictable(uid), func(sum uint64, _ int) bool { return sum >= missing })
	if sum < missing {
		return s.refuse(n, what, cause, sum)
	}
	for _, e := range victims {
		s.evict(e, ReasonRoom)
	}
	if short {
		return s.reclaimed(n, what)
	}
	return nil
}

// reclaimed makes sure that n bytes are free now. What was evicted may be held by others still, as by a daemon that this
// one has replaced; to allocate all the same could get this process killed.
func (s *Store) reclaimed(n uint64, what string) error {
	room, err := s.os.Headroom()
	if err != nil || n+s.pending+s.promised <= room { // memoryMargin is for what the kernel counts late
		return nil
	}
	s.counters.Refused++
	s.log.Warn("does not fit, and what was evicted is still held", "file", what, "bytes", n, "size", humanize.IBytes(n),
		"left", humanize.IBytes(room))
	return fmt.Errorf("%w for %s: %s of memory are left, and what was evicted is still held", ErrNoSpace,
		humanize.IBytes(n), humanize.IBytes(room))
}

// Reserve makes room for all that a fill will take, before any of it is there: what does not fit is refused as a whole,
// and nothing is evicted for a part of it. What is created in the staging then takes from it; more than that is reserved
// as it comes. It replaces an earlier reservation.
func (e *Entry) Reserve(n uint64, c Caller) error {
	s := e.store
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	switch {
	case e.state != Staging:
		return ErrReadOnly
	case !c.Owns(e.owner):
		return ErrNotOwner
	case e.committing:
		return ErrBusy
	}
	e.unreserve()
	if err := s.reserve(e.owner.UID, n, true, e.id); err != nil {
		return err
	}
	e.promised = n
	s.promised += n
	return nil
}

func (e *Entry) unreserve() {
	e.store.promised -= e.promised
	e.promised = 0
}

// claim is reserve for bytes of a staging, which come out of its reservation as far as that goes.
func (e *Entry) claim(n uint64, look bool, what string) error {
	drawn := min(n, e.promised)
	e.promised -= drawn
	e.store.promised -= drawn
	err := e.store.reserve(e.owner.UID, n, look, what)
	if err != nil && e.state == Staging {
		e.promised += drawn
		e.store.promised += drawn
	}
	return err
}

func shortfall(need, have uint64) uint64 { return need - min(need, have) }

func (s *Store) refuse(n uint64, what, cause string, evictable uint64) error {
	s.counters.Refused++
	s.log.Warn("does not fit, nothing was evicted",
		"file", what, "bytes", n, "size", humanize.IBytes(n), "cause", cause,
		"max_bytes", humanize.IBytes(s.opts.MaxBytes), "cached", humanize.IBytes(s.bytes[inCache]),
		"staging", humanize.IBytes(s.bytes[inStaging]), "draining", humanize.IBytes(s.bytes[inDraining]),
		"reserved", humanize.IBytes(s.promised), "evictable", humanize.IBytes(evictable))
	return fmt.Errorf("%w for %s (%s): %s of %s are in use, %s could be evicted", ErrNoSpace, humanize.IBytes(n), cause,
		humanize.IBytes(s.used()), humanize.IBytes(s.opts.MaxBytes), humanize.IBytes(evictable))
}

// reserveFile makes room for one more file of user uid under MaxFiles.
func (s *Store) reserveFile(uid uint32) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.opts.MaxFiles == 0 {
		return nil
	}
	for s.descriptors() >= s.opts.MaxFiles {
		idle := s.evictable(uid)
		if len(idle) == 0 {
			s.counters.Refused++
			s.log.Warn("too many files are open, nothing was evicted", "files", s.descriptors(), "max_files", s.opts.MaxFiles)
			return fmt.Errorf("%w for one more of %d files", ErrNoSpace, s.opts.MaxFiles)
		}
		s.evict(idle[0], ReasonMaxFiles)
	}
	return nil
}

// descriptors is how many are open for entries and stagings: a memfd for each file that is not packed, the pack, and what a
// keeper has.
func (s *Store) descriptors() int {
	n := len(s.files) - s.packed
	if s.pack.fd >= 0 {
		n++
	}
	if s.opts.Keeper != nil {
		n += len(s.entries)
	}
	return n
}

// idle returns the entries that may be evicted, those that are neither pinned nor leased, least recently used first.
func (s *Store) idle() []*Entry {
	var idle []*Entry
	for _, e := range s.entries {
		if e.idle() {
			idle = append(idle, e)
		}
	}
	sort.Slice(idle, func(i, j int) bool {
		a, b := idle[i], idle[j]
		if !a.lastUse.Equal(b.lastUse) {
			return a.lastUse.Before(b.lastUse)
		}
		return a.serial < b.serial
	})
	return idle
}

// evictable returns the idle entries that may go for the sake of user uid, least recently used first: the user's own, and
// those of others while these have more than their share, which is the budget divided by the number of users. So nobody
// drives out what others have by filling without end.
func (s *Store) evictable(uid uint32) []*Entry {
	held := map[uint32]uint64{uid: 0}
	for _, e := range s.entries {
		held[e.owner.UID] += e.size()
	}
	share := s.opts.MaxBytes / uint64(len(held))
	var out []*Entry
	for _, e := range s.idle() {
		if owner := e.owner.UID; owner != uid {
			if held[owner] <= share {
				continue
			}
			held[owner] -= e.size()
		}
		out = append(out, e)
	}
	return out
}

// size is how many bytes the files of the entry have, shared ones in full.
func (e *Entry) size() uint64 {
	var sum uint64
	e.allFiles(func(f *File) { sum += f.mem.bytes })
	return sum
}

// victims returns those of the idle entries that would be evicted next, until enough(bytes, entries) says that they suffice, and
// the bytes they would free.
func (s *Store) victims(idle []*Entry, enough func(sum uint64, n int) bool) ([]*Entry, uint64) {
	var sum uint64
	gone := map[*memory]int{}
	for i, e := range idle {
		if enough(sum, i) {
			return idle[:i], sum
		}
		sum += e.freeable(gone)
	}
	return idle, sum
}

// freeable is how many bytes come back at once when the entry goes: what is open or being read stays, as draining, and
// so does what others share. gone counts the files that have let go of a memory before, and is kept up.
func (e *Entry) freeable(gone map[*memory]int) uint64 {
	var sum uint64
	e.allFiles(func(f *File) {
		if f.refs > 1 {
			return
		}
		gone[f.mem]++
		if gone[f.mem] == f.mem.holders() {
			sum += f.mem.bytes
		}
	})
	return sum
}
