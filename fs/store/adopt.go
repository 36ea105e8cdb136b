package store

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unique"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// Passed is a file on its way from one daemon to another: what is to be known of it, and a memfd of its own.
type Passed struct {
	schema.FileRecord
	FD   int
	Copy bool // the memfd was made for this one time, see File.unpacked
}

// Records returns the records of all published entries and, if wanted, of the stagings.
func (s *Store) Records(stagings bool) []schema.EntryRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []schema.EntryRecord
	for _, e := range s.entries {
		out = append(out, e.record())
	}
	if stagings {
		for _, e := range s.staging {
			out = append(out, e.record())
		}
	}
	return out
}

func (e *Entry) record() schema.EntryRecord {
	r := schema.EntryRecord{
		Serial: e.serial, ID: e.id, UID: e.owner.UID, GID: e.owner.GID, PID: int32(e.owner.PID),
		Staging: e.state == Staging, HasTensors: e.hasTensors,
		CreatedNS: e.created.UnixNano(), Hits: e.hits, Pinned: e.pinned,
	}
	if !r.Staging {
		r.LastUseNS = e.lastUse.UnixNano()
	} else {
		// This process will hold the lock of the filler there, so the staging is dropped when it lets go.
		r.PID = 0
		if e.hadLock {
			r.PID = int32(os.Getpid())
		}
	}
	return r
}

// Borrow returns the files of an entry or a staging, none when it is gone; the memfds are valid until release. It fails
// where a small file, which has none, cannot get one.
func (s *Store) Borrow(r schema.EntryRecord) (files []Passed, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := s.entries
	if r.Staging {
		table = s.staging
	}
	e := table[r.ID]
	if e == nil || e.serial != r.Serial {
		return nil, func() {}, nil
	}
	files, unlock, err := e.lend()
	if err != nil {
		return nil, nil, err
	}
	return files, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		unlock()
	}, nil
}

func (f *File) record() schema.FileRecord {
	return schema.FileRecord{Entry: f.entry.serial, Serial: f.serial, Name: f.name, Arena: f.kind == arena, Huge: f.huge}
}

func (f *File) passed(fd int) Passed { return Passed{f.record(), fd, fd != f.fd} }

// Adoption is an entry or a staging of another daemon, checked, with its own memory in the store that made it.
type Adoption struct {
	schema.EntryRecord
	store *Store
	files []adopted
	facts facts // of a published entry
}

// adopted is a file of an adoption. There are many of them before the first is adopted, so small ones are packed at once.
type adopted struct {
	schema.FileRecord
	place
	size uint64
}

// NewAdoption checks what another daemon hands over as a commit would: published files have all seals, and the manifest
// fits the files. It owns the descriptors from now on, also when it fails; the error wraps ErrForeign and names the
// culprit. Only this store can adopt what it returns.
func (s *Store) NewAdoption(r schema.EntryRecord, files []Passed) (*Adoption, error) {
	a := &Adoption{EntryRecord: r, store: s}
	for _, f := range files {
		a.files = append(a.files, adopted{FileRecord: f.FileRecord, place: place{fd: f.FD}})
	}
	if err := a.check(); err != nil {
		a.Close()
		return nil, fmt.Errorf("%s: %w: %w", r.ID, ErrForeign, err)
	}
	if !a.Staging {
		a.pack()
	}
	return a, nil
}

// Close gives the memory up.
func (a *Adoption) Close() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.close()
}

func (a *Adoption) close() {
	for _, f := range a.files {
		a.store.vacate(f.place)
	}
	a.files = nil
}

// pack moves small files into the pack, as packBlobs does.
func (a *Adoption) pack() {
	if !slices.ContainsFunc(a.files, func(f adopted) bool { return f.Arena }) {
		return
	}
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	for i := range a.files {
		if f := &a.files[i]; !f.Arena {
			a.store.toPack(a.ID, f.Name, &f.place, f.size)
		}
	}
}

func (a *Adoption) check() error {
	arenas := map[string]uint64{}
	blobs := map[string]adopted{}
	for i := range a.files {
		size, err := fileSize(a.files[i].fd)
		a.files[i].size = size
		f := a.files[i]
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if err := a.checkSeals(f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		switch _, twice := arenas[f.Name]; {
		case f.Arena && !twice:
			arenas[f.Name] = f.size
		case !f.Arena && (f.Name == ManifestName || f.Name == StructureName) && blobs[f.Name].Name == "":
			blobs[f.Name] = f
		default:
			return fmt.Errorf("%w: %q", ErrName, f.Name)
		}
	}
	if a.Staging {
		return nil
	}
	for _, name := range []string{ManifestName, StructureName} {
		if blobs[name].Name == "" {
			return fmt.Errorf("%w: no %s", ErrIncomplete, name)
		}
	}
	return a.checkManifest(blobs, arenas)
}

// checkSeals also finds out that the descriptor is a memfd: nothing else has seals.
func (a *Adoption) checkSeals(f adopted) error {
	seals, err := a.store.os.GetSeals(f.fd)
	if err != nil {
		return fmt.Errorf("read seals: %w", err)
	}
	want := baseSeals
	if a.Staging {
		want = 0
		if f.Arena && f.size > 0 {
			want = sizeSeals
		}
		if seals&unix.F_SEAL_WRITE != 0 && seals&baseSeals != baseSeals {
			return fmt.Errorf("%w: %#x", ErrSeals, seals)
		}
	}
	if seals&want != want {
		return fmt.Errorf("%w: %#x", ErrSeals, seals)
	}
	return nil
}

func (a *Adoption) checkManifest(blobs map[string]adopted, arenas map[string]uint64) error {
	m, err := decodeAt(blobs[ManifestName].place, blobs[ManifestName].size)
	if err != nil {
		return err
	}
	a.facts = factsOf(m)
	return m.Validate(schema.Files{ID: a.ID, Arenas: arenas, StructureNbytes: blobs[StructureName].size})
}

// Adopt puts entries and stagings of another daemon into a new store, with their serial numbers and so with their inode
// numbers. Where they do not fit into the limits, idle entries leave as they would for a fill. Memory that is evicted
// here is free when the other daemon has let go of it too. It owns what it is given, also when it fails.
func (s *Store) Adopt(all []*Adoption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		for _, a := range all {
			a.close()
		}
	}()
	same := map[memfdID]*memory{}
	for _, a := range all {
		if err := s.adopt(a, same); err != nil {
			return fmt.Errorf("%s: %w: %w", a.ID, ErrForeign, err)
		}
	}
	s.trim()
	return nil
}

// adopt takes an adoption over. same are the memories of those before, some of which it may share.
func (s *Store) adopt(a *Adoption, same map[memfdID]*memory) error {
	switch {
	case s.closed:
		return ErrClosed
	case a.store != s:
		return errors.New("adopted by another store than checked it")
	}
	e := s.newEntry(a.ID, a.Serial, Caller{UID: a.UID, GID: a.GID, PID: int(a.PID)}, time.Unix(0, a.CreatedNS))
	table, in := s.entries, inCache
	if a.Staging {
		table, in = s.staging, inStaging
		e.hadLock, e.lockPID, e.hasTensors = a.PID != 0, int(a.PID), a.HasTensors
	} else {
		e.state, e.facts, e.hasTensors = Published, a.facts, true
		e.released = nil // nobody can write any more
		e.hits, e.pinned, e.lastUse = a.Hits, a.Pinned, time.Unix(0, a.LastUseNS)
	}
	if table[a.ID] != nil {
		return ErrExists
	}
	for _, p := range a.files {
		f := &File{
			store: s, entry: e, name: unique.Make(p.Name).Value(), serial: p.Serial, place: p.place, refs: 1, attached: true, in: in,
			huge: p.Huge, written: e.created.UnixNano(), foreign: a.Staging,
		}
		if p.packed() {
			s.packed++
			f.mem = newMemory(in)
		} else {
			f.mem = s.known(same, p.fd, in)
		}
		dir := ""
		if p.Arena {
			f.kind, dir = arena, TensorsName
		}
		e.files(dir).add(f)
		s.files[f] = struct{}{}
		f.resize(p.size)
		f.sized = p.Arena && p.size > 0
		if f.foreign {
			f.settleSize() // it may have been written since
		}
		if in == inCache {
			s.alike.add(f)
		}
		s.serial = max(s.serial, f.serial)
	}
	a.files = nil
	table[a.ID] = e
	s.serial = max(s.serial, e.serial)
	if !a.Staging {
		s.keep(e)
	}
	return nil
}

// trim evicts until the limits hold, as far as that goes.
func (s *Store) trim() {
	missing := shortfall(s.used(), s.opts.MaxBytes)
	excess := 0
	if s.opts.MaxEntries > 0 {
		excess = max(0, len(s.entries)-s.opts.MaxEntries)
	}
	victims, _ := s.victims(s.idle(), func(sum uint64, n int) bool { return sum >= missing && n >= excess })
	for _, e := range victims {
		s.evict(e, ReasonRoom)
	}
}

// settleSize takes over what the kernel says about the size. Another daemon may be writing, within its own budget.
func (f *File) settleSize() {
	size, err := fileSize(f.fd)
	if err != nil {
		return // of an open memfd: never
	}
	f.resize(size)
	f.sized = f.kind == arena && size > 0
}

// settleForeign is called when a handle for writing was released: that of the other daemon is the last one.
func (f *File) settleForeign() {
	if f.foreign && f.writers == 0 {
		f.foreign = false
		f.settleSize()
	}
}
