package store

import (
	"fmt"
	"time"

	"overmind-fs/schema"
)

// Reason says why an entry left.
type Reason string

// The reasons.
const (
	ReasonRoom       Reason = "room"        // to make room for a fill
	ReasonMaxEntries Reason = "max_entries" // there were too many entries
	ReasonMaxFiles   Reason = "max_files"   // there were too many open files
	ReasonReplaced   Reason = "replaced"    // an entry of the same id was committed
	ReasonSuperseded Reason = "superseded"  // a newer entry of the same loader and arguments was committed
	ReasonTTL        Reason = "ttl"         // nobody used it for too long
	ReasonPressure   Reason = "pressure"    // the machine or a cgroup is short of memory
	ReasonRemoved    Reason = "removed"     // by hand
)

// Reasons lists all reasons.
var Reasons = []Reason{
	ReasonRoom, ReasonMaxEntries, ReasonMaxFiles, ReasonReplaced, ReasonSuperseded, ReasonTTL, ReasonPressure, ReasonRemoved,
}

// tombstone is what is left of an entry while "rm -r" walks through it.
type tombstone struct {
	expires  time.Time
	manifest *schema.Manifest // for the names in storages/; nil: there are none
	removed  map[string]bool  // paths in the entry that are gone
	arenas   int              // names left in tensors/
	windows  int              // names left in storages/
}

// removal is a process that removes the files of an entry one by one, as "rm -r" does. The rmdir at its end names the
// folder only, and must not hit an entry that was committed under that name in between.
type removal struct {
	pid     int
	serial  uint64 // of the entry
	expires time.Time
}

// removing remembers who takes an entry apart.
func (s *Store) removing(e *Entry, c Caller) {
	now := s.opts.Now()
	for id, r := range s.removals {
		if now.After(r.expires) {
			delete(s.removals, id)
		}
	}
	s.removals[e.id] = removal{pid: c.PID, serial: e.serial, expires: now.Add(TombstoneLife)}
}

// meansOlder says, once, that the caller has been removing another entry than this one of the same name.
func (s *Store) meansOlder(e *Entry, c Caller) bool {
	r := s.removals[e.id]
	if r.pid != c.PID {
		return false
	}
	delete(s.removals, e.id)
	return c.PID != 0 && r.serial != e.serial && !s.opts.Now().After(r.expires)
}

// Evict removes a published entry, or what "rm -r" has left of one. It is ErrNotEmpty for a process that has unlinked
// files of an older entry of that name.
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
	if s.meansOlder(e, c) {
		return fmt.Errorf("%w: a new entry took the place of what was removed", ErrNotEmpty)
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
	s.log.Info("evicted", "entry", e.id, "reason", why, "bytes", info.Bytes, "shared", info.Shared,
		"leases", info.Leases, "hits", info.Hits)
}

// detach lets go of all files.
func (s *Store) detach(e *Entry) {
	e.state = Gone
	e.unreserve()
	s.recent.forget(e)
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
		f := e.files(dir).named(name)
		switch {
		case f == nil:
			return ErrNotFound
		case e.committing:
			return ErrBusy
		}
		e.files(dir).remove(f)
		f.detach()
		return nil
	case Published:
		s.bury(e)
	case Tombstone:
	default:
		s.removing(e, c)
		return ErrNotFound
	}
	s.removing(e, c)
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
		if left := map[string]int{TensorsName: len(e.arenas), StoragesName: e.facts.storages}; left[name] > 0 {
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
	tomb := &tombstone{
		expires: s.opts.Now().Add(TombstoneLife),
		removed: map[string]bool{},
		arenas:  len(e.arenas),
	}
	manifest := e.blobs.named(ManifestName)
	m, err := decodeAt(manifest.place, manifest.mem.bytes)
	if err == nil {
		tomb.manifest, tomb.windows = m, len(m.Storages)
	} else {
		s.log.Error("cannot decode a manifest", "entry", e.id, "error", err) // storages/ then shows nothing
	}
	s.evict(e, ReasonRemoved)
	e.state, e.tomb = Tombstone, tomb
	s.tombs[e.id] = e
}
