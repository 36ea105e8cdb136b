package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// Commit publishes a staging: it waits for the writers, checks the manifest against the files, seals these, reads the
// seals back, and puts the entry in place of one with the same id, all or nothing. After an error the staging is what
// it was, except that files may be sealed already; another Commit may follow. With noReplace an existing entry is
// ErrExists.
func (s *Store) Commit(ctx context.Context, id string, c Caller, noReplace bool) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("commit %s: %w", id, err)
	}
	defer s.mu.Unlock()
	e, files, err := s.beginCommit(id, c, noReplace)
	if err != nil {
		return fmt.Errorf("commit %s: %w", id, err)
	}
	defer s.endCommit(e, files)
	m, err := s.prepare(ctx, e, files)
	if err == nil {
		err = s.publish(e, m, c, noReplace)
	}
	if err != nil {
		s.log.Warn("commit refused", "entry", id, "error", err)
		return fmt.Errorf("commit %s: %w", id, err)
	}
	return nil
}

// beginCommit marks the staging and takes a reference to each of its files.
func (s *Store) beginCommit(id string, c Caller, noReplace bool) (*Entry, []*File, error) {
	e := s.staging[id]
	switch {
	case s.closed:
		return nil, nil, ErrClosed
	case e == nil:
		return nil, nil, ErrNotFound
	case !c.Owns(e.owner):
		return nil, nil, ErrNotOwner
	case e.committing:
		return nil, nil, ErrBusy
	}
	if err := s.mayReplace(e, c, noReplace); err != nil {
		return nil, nil, err
	}
	var files []*File
	e.allFiles(func(f *File) { files = append(files, f) })
	for _, f := range files {
		if f.busy {
			return nil, nil, ErrBusy
		}
	}
	for _, f := range files {
		f.refs++
	}
	e.committing = true
	return e, files, nil
}

// endCommit undoes what beginCommit did, however the commit went.
func (s *Store) endCommit(e *Entry, files []*File) {
	for _, f := range files {
		f.unref()
	}
	e.committing = false
	s.changed.Broadcast()
	if e.abandoned && e.state == Staging {
		s.drop(e, "its filler let go of the lock")
	}
}

func (s *Store) mayReplace(e *Entry, c Caller, noReplace bool) error {
	old := s.entries[e.id]
	switch {
	case old == nil:
		return nil
	case noReplace:
		return ErrExists
	case old.owner.UID != e.owner.UID && c.UID != 0:
		return ErrNotOwner
	}
	return nil
}

// prepare does the slow part of a commit. It lets go of s.mu meanwhile.
func (s *Store) prepare(ctx context.Context, e *Entry, files []*File) (*schema.Manifest, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	if err := s.waitWriters(ctx, e, files); err != nil {
		return nil, err
	}
	m, err := s.readManifest(e)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(s.opts.CommitWait)
	for _, f := range files {
		if err := s.sealFile(ctx, f, deadline); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// waitWriters waits until no handle for writing is open. A client's close comes before the release that the daemon
// sees, so a commit may be early.
func (s *Store) waitWriters(ctx context.Context, e *Entry, files []*File) error {
	timeout := time.NewTimer(s.opts.CommitWait)
	defer timeout.Stop()
	for {
		name := s.writtenFile(files)
		if name == "" {
			return nil
		}
		select {
		case <-e.released:
		case <-timeout.C:
			if s.writtenFile(files) == "" {
				return nil
			}
			return fmt.Errorf("%w: %s", ErrWriters, name)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) writtenFile(files []*File) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if f.writers > 0 {
			return f.name
		}
	}
	return ""
}

// readManifest decodes and validates the staged manifest, and checks the files against the kernel's idea of them.
func (s *Store) readManifest(e *Entry) (*schema.Manifest, error) {
	s.mu.Lock()
	manifest, structure := e.blobs.named(ManifestName), e.blobs.named(StructureName)
	arenas := make(map[string]uint64, len(e.arenas))
	var bad error
	e.allFiles(func(f *File) {
		size, err := fileSize(f.fd)
		switch {
		case err != nil:
			bad = err
		case f.kind == arena && !f.sized:
			bad = fmt.Errorf("%w: %s has no size", ErrIncomplete, f.name)
		case size != f.mem.bytes:
			bad = fmt.Errorf("%w: %s has %d bytes, %d were allocated", ErrIncomplete, f.name, size, f.mem.bytes)
		case f.kind == arena:
			arenas[f.name] = size
		}
	})
	s.mu.Unlock()
	if bad != nil {
		return nil, bad
	}
	for name, f := range map[string]*File{ManifestName: manifest, StructureName: structure} {
		if f == nil {
			return nil, fmt.Errorf("%w: no %s", ErrIncomplete, name)
		}
	}
	m, err := decodeAt(manifest.place, manifest.Size())
	if err != nil {
		return nil, err
	}
	return m, m.Validate(schema.Files{ID: e.id, Arenas: arenas, StructureNbytes: structure.Size()})
}

// sealFile seals one file, waiting for mappings of closed handles to go away, and reads the seals back.
func (s *Store) sealFile(ctx context.Context, f *File, deadline time.Time) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := seal(s.os, f.fd)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w: mapped for writing", f.name, ErrBusy)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ok, err := sealed(s.os, f.fd)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	if !ok {
		return fmt.Errorf("%s: %w", f.name, ErrSeals)
	}
	return nil
}

// publish puts the entry in place.
func (s *Store) publish(e *Entry, m *schema.Manifest, c Caller, noReplace bool) error {
	if s.staging[e.id] != e {
		return ErrNotFound // dropped while it was sealed
	}
	if err := s.mayReplace(e, c, noReplace); err != nil {
		return err
	}
	old := s.entries[e.id]
	stale := s.outdated(e, factsOf(m))
	switch {
	case old == nil && len(stale) == 0:
		if err := s.reserveEntry(e.owner.UID); err != nil {
			return err
		}
	case old != nil:
		e.pinned = old.pinned // what people pin is the name
		s.evict(old, replaceReason(old.facts, factsOf(m)))
	}
	for _, x := range stale {
		s.evict(x, ReasonSuperseded)
	}
	e.state, e.facts, e.lastUse = Published, factsOf(m), s.opts.Now()
	e.released = nil // nobody can write any more
	e.unreserve()
	s.mayExpire()
	e.allFiles(func(f *File) { f.move(inCache) })
	delete(s.staging, e.id)
	delete(s.tombs, e.id)
	if s.removals[e.id].pid == e.owner.PID {
		delete(s.removals, e.id) // whoever fills it anew has done with the older one
	}
	s.entries[e.id] = e
	s.keep(e) // while the memfds are there that it wants
	s.packBlobs(e)
	size := e.info().Bytes
	s.counters.FillsCommitted++
	s.counters.FilledBytes += size
	if took := m.FillSeconds; took > 0 && !math.IsInf(took, 0) {
		s.counters.FillSeconds += took
	}
	s.log.Info("published", "entry", e.id, "bytes", size, "arenas", len(e.arenas), "uid", e.owner.UID)
	return nil
}

func replaceReason(old, newer facts) Reason {
	if supersedes(newer, old) {
		return ReasonSuperseded
	}
	return ReasonReplaced
}

func supersedes(newer, old facts) bool {
	return newer.scope != "" && old.scope == newer.scope && old.createdNS < newer.createdNS
}

// outdated returns the entries of other ids that nobody will ask for once e is there: older ones of the same loader,
// arguments and owner. A pinned one stays, since what people pin is the name.
func (s *Store) outdated(e *Entry, newer facts) []*Entry {
	var out []*Entry
	for id, old := range s.entries {
		if id != e.id && !old.pinned && old.owner.UID == e.owner.UID && supersedes(newer, old.facts) {
			out = append(out, old)
		}
	}
	return out
}

// reserveEntry makes room for one more entry of user uid under MaxEntries.
func (s *Store) reserveEntry(uid uint32) error {
	excess := len(s.entries) + 1 - s.opts.MaxEntries
	if s.opts.MaxEntries == 0 || excess <= 0 {
		return nil
	}
	victims, _ := s.victims(s.evictable(uid), func(_ uint64, n int) bool { return n >= excess })
	if len(victims) < excess {
		s.counters.Refused++
		s.log.Warn("too many entries, nothing was evicted", "entries", len(s.entries), "max_entries", s.opts.MaxEntries)
		return fmt.Errorf("%w for one more of %d entries", ErrNoSpace, s.opts.MaxEntries)
	}
	for _, v := range victims {
		s.evict(v, ReasonMaxEntries)
	}
	return nil
}
