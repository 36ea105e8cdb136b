package store

import "time"

// Reason says why an entry left.
type Reason string

// The reasons.
const (
	ReasonRoom       Reason = "room"        // to make room for a fill
	ReasonMaxEntries Reason = "max_entries" // there were too many entries
	ReasonReplaced   Reason = "replaced"    // an entry of the same id was committed
	ReasonSuperseded Reason = "superseded"  // the same, newer, and of the same loader and path
	ReasonRemoved    Reason = "removed"     // by hand
)

// Reasons lists all reasons.
var Reasons = []Reason{ReasonRoom, ReasonMaxEntries, ReasonReplaced, ReasonSuperseded, ReasonRemoved}

// tombstone is what is left of an entry while "rm -r" walks through it.
type tombstone struct {
	expires time.Time
	removed map[string]bool // paths in the entry that are gone
	arenas  int             // names left in tensors/
	windows int             // names left in storages/
}

// Evict removes a published entry, or what "rm -r" has left of one.
func (s *Store) Evict(id string, c Caller) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	e := s.published(id)
	if e == nil {
		return ErrNotFound
	}
	if !c.Owns(e.owner) {
		return ErrNotOwner
	}
	if e.state == Tombstone {
		e.state = Gone
		delete(s.tombs, id)
		return nil
	}
	s.evict(e, ReasonRemoved)
	return nil
}

// evict takes a published entry out.
func (s *Store) evict(e *Entry, why Reason) {
	info := e.info()
	delete(s.entries, e.id)
	s.detach(e)
	s.forget(e)
	s.counters.Evictions[why]++
	s.log.Info("evicted", "entry", e.id, "reason", why, "bytes", info.Bytes, "leases", info.Leases, "hits", info.Hits)
}

// detach lets go of all files.
func (s *Store) detach(e *Entry) {
	e.state = Gone
	e.allFiles((*File).detach)
}

// Unlink removes one file. In a staging just that file; in a published entry the first one takes the whole entry out
// and leaves a tombstone, in which every remaining name can be unlinked.
func (e *Entry) Unlink(dir, name string, c Caller) error {
	s := e.store
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if !c.Owns(e.owner) {
		return ErrNotOwner
	}
	switch e.state {
	case Staging:
		f := e.names(dir)[name]
		switch {
		case f == nil:
			return ErrNotFound
		case e.committing:
			return ErrBusy
		}
		delete(e.names(dir), name)
		f.detach()
		return nil
	case Published:
		s.bury(e)
	case Tombstone:
	default:
		return ErrNotFound
	}
	if e.hidden(dir, name) {
		return ErrNotFound
	}
	e.tomb.removed[join(dir, name)] = true
	switch dir {
	case TensorsName:
		e.tomb.arenas--
	case StoragesName:
		e.tomb.windows--
	}
	return nil
}

// RemoveDir removes tensors/ or storages/, which must be empty.
func (e *Entry) RemoveDir(name string, c Caller) error {
	s := e.store
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if !c.Owns(e.owner) {
		return ErrNotOwner
	}
	switch e.state {
	case Staging:
		switch {
		case name != TensorsName || !e.hasTensors:
			return ErrNotFound
		case e.committing:
			return ErrBusy
		case len(e.arenas) > 0:
			return ErrNotEmpty
		}
		e.hasTensors = false
		return nil
	case Published:
		if left := map[string]int{TensorsName: len(e.arenas), StoragesName: len(e.manifest.Storages)}; left[name] > 0 {
			return ErrNotEmpty
		}
		s.bury(e)
	case Tombstone:
		if left := map[string]int{TensorsName: e.tomb.arenas, StoragesName: e.tomb.windows}; left[name] > 0 {
			return ErrNotEmpty
		}
	default:
		return ErrNotFound
	}
	if e.hidden("", name) {
		return ErrNotFound
	}
	e.tomb.removed[name] = true
	return nil
}

// bury turns a published entry into a tombstone.
func (s *Store) bury(e *Entry) {
	s.evict(e, ReasonRemoved)
	e.state = Tombstone
	e.tomb = &tombstone{
		expires: s.opts.Now().Add(TombstoneLife),
		removed: map[string]bool{},
		arenas:  len(e.arenas),
		windows: len(e.manifest.Storages),
	}
	s.tombs[e.id] = e
}
