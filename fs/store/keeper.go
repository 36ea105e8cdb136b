package store

import "overmind-fs/schema"

// Keeper is told what should outlive the process. Its methods are called under the lock of the store, so they return at
// once. After a takeover it is the other daemon's keeper that counts.
type Keeper interface {
	// Keep is called for every entry that is published or adopted and that it does not keep; the descriptors are valid
	// until it returns.
	Keep(r schema.EntryRecord, files []Passed)
	// Keeps says whether it keeps the entry already, as after a restart. It may have a descriptor open for each that it
	// keeps.
	Keeps(serial uint64) bool
	// Lose is called instead of Keep where there are no descriptors to be had; the keeper says so. What a daemon that was
	// replaced had kept of the entry goes, since nobody would remove it later.
	Lose(r schema.EntryRecord, files []schema.FileRecord, why error)
	// Update is called when hits, last use or pin of a kept entry have changed.
	Update(r schema.EntryRecord)
	// Forget is called when an entry has left. It is not called for what is left when the store is closed.
	Forget(serial uint64)
}

func (s *Store) keep(e *Entry) {
	if s.opts.Keeper == nil || s.superseded {
		return
	}
	if s.opts.Keeper.Keeps(e.serial) {
		s.opts.Keeper.Update(e.record())
		return
	}
	files, release, err := e.lend()
	if err != nil {
		var records []schema.FileRecord
		e.allFiles(func(f *File) { records = append(records, f.record()) })
		s.opts.Keeper.Lose(e.record(), records, err)
		return
	}
	defer release()
	s.opts.Keeper.Keep(e.record(), files)
}

func (s *Store) update(e *Entry) {
	if s.opts.Keeper != nil && !s.superseded {
		s.opts.Keeper.Update(e.record())
	}
}

func (s *Store) forget(e *Entry) {
	if s.opts.Keeper != nil && !s.superseded {
		s.opts.Keeper.Forget(e.serial)
	}
}
