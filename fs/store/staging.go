package store

import (
	"fmt"
	"time"

	"overmind-fs/schema"
)

// Begin makes an empty staging.
func (s *Store) Begin(id string, c Caller) (*Entry, error) {
	if !schema.ValidID(id) {
		return nil, fmt.Errorf("%w: %q", ErrName, id)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.staging[id] != nil {
		return nil, ErrExists
	}
	if n := s.stagingsOf(c.UID); n >= MaxStagings {
		return nil, fmt.Errorf("%w: uid %d has %d fills under way", ErrTooMany, c.UID, n)
	}
	e := s.newEntry(id, s.nextSerial(), c, s.opts.Now())
	e.hadLock, e.lockPID = s.lockedBy(id, c.PID)
	s.staging[id] = e
	s.counters.FillsStarted++
	s.log.Debug("fill started", "entry", id, "uid", c.UID, "pid", c.PID)
	return e, nil
}

func (s *Store) stagingsOf(uid uint32) int {
	n := 0
	for _, e := range s.staging {
		if e.owner.UID == uid {
			n++
		}
	}
	return n
}

// lockedBy says whether process pid has the lock of id open, and which process it is whose handle goes with it.
func (s *Store) lockedBy(id string, pid int) (bool, int) {
	if s.locks[id][pid] == 0 && s.predecessor != 0 {
		pid = s.predecessor // it may have opened the lock in that daemon's mount
	}
	return s.locks[id][pid] > 0, pid
}

// HasLock says whether the filler had the lock open when it began: the staging goes with it.
func (e *Entry) HasLock() bool {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return e.hadLock
}

func (s *Store) newEntry(id string, serial uint64, owner Caller, created time.Time) *Entry {
	e := &Entry{
		store: s, id: id, serial: serial, owner: owner, created: created, state: Staging,
		released: make(chan struct{}, 1),
	}
	return e
}

// MakeTensors makes the folder of the arenas in a staging.
func (e *Entry) MakeTensors(c Caller) error {
	if err := e.store.enter(); err != nil {
		return err
	}
	defer e.store.mu.Unlock()
	switch {
	case e.state == Published || e.state == Tombstone:
		return ErrReadOnly
	case e.state != Staging:
		return ErrNotFound
	case !c.Owns(e.owner):
		return ErrNotOwner
	case e.hasTensors:
		return ErrExists
	}
	e.hasTensors = true
	return nil
}

// CreateArena makes an arena without a size in a staging and opens it for writing.
func (e *Entry) CreateArena(name string, c Caller) (*File, *Handle, error) {
	if !schema.ValidArenaName(name) {
		return nil, nil, fmt.Errorf("%w: %q", ErrName, name)
	}
	if !c.Owns(e.owner) {
		return nil, nil, ErrNotOwner
	}
	return e.create(arena, TensorsName, name, c.PID)
}

// CreateBlob makes an empty manifest or structure.pkl in a staging and opens it for writing.
func (e *Entry) CreateBlob(name string, c Caller) (*File, *Handle, error) {
	if name != ManifestName && name != StructureName {
		return nil, nil, fmt.Errorf("%w: %q", ErrName, name)
	}
	if !c.Owns(e.owner) {
		return nil, nil, ErrNotOwner
	}
	return e.create(blob, "", name, c.PID)
}

// Drop removes a staging with everything in it.
func (s *Store) Drop(id string, c Caller) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	e := s.staging[id]
	if e == nil {
		return ErrNotFound
	}
	if !c.Owns(e.owner) {
		return ErrNotOwner
	}
	s.drop(e, "removed")
	return nil
}

func (s *Store) drop(e *Entry, why string) {
	s.detach(e)
	delete(s.staging, e.id)
	s.counters.FillsFailed++
	s.log.Info("staging dropped", "entry", e.id, "why", why, "uid", e.owner.UID, "pid", e.owner.PID)
}

// LockHandle is one open file locks/<id>. The lock itself is kept by the kernel; the store only wants to know when the
// filler lets go of it.
type LockHandle struct {
	store    *Store
	id       string
	owner    Caller
	released bool // guarded by store.mu
}

// OpenLock records an open handle of the caller on the lock of id.
func (s *Store) OpenLock(id string, c Caller) (*LockHandle, error) {
	if !schema.ValidID(id) {
		return nil, fmt.Errorf("%w: %q", ErrName, id)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if n := s.locked[c.UID]; n >= MaxLocks && c.UID != 0 {
		return nil, fmt.Errorf("%w: uid %d has %d locks open", ErrTooMany, c.UID, n)
	}
	if s.locks[id] == nil {
		s.locks[id] = map[int]int{}
	}
	s.locks[id][c.PID]++
	s.locked[c.UID]++
	return &LockHandle{store: s, id: id, owner: c}, nil
}

// LockIDs returns the ids whose locks are open.
func (s *Store) LockIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.locks))
	for id := range s.locks {
		ids = append(ids, id)
	}
	return ids
}

// Release forgets the handle. With the last one of the process that fills the id, its staging is dropped: it died or
// gave up. A process that opened the lock again since keeps its staging, so a late Release cannot hit a new fill.
func (h *LockHandle) Release() {
	s := h.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaitThaw()
	if h.released {
		return
	}
	h.released = true
	if s.locked[h.owner.UID]--; s.locked[h.owner.UID] == 0 {
		delete(s.locked, h.owner.UID)
	}
	byPID, pid := s.locks[h.id], h.owner.PID
	byPID[pid]--
	if byPID[pid] > 0 {
		return
	}
	delete(byPID, pid)
	if len(byPID) == 0 {
		delete(s.locks, h.id)
		s.letGo(h.id)
	}
	e := s.staging[h.id]
	switch {
	case s.superseded: // the staging is there
	case e == nil || !e.hadLock || e.lockPID != pid:
	case e.committing:
		e.abandoned = true
	default:
		s.drop(e, "its filler let go of the lock")
	}
}
