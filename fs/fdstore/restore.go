package fdstore

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// errIncomplete is returned when a descriptor of an entry did not come back.
var errIncomplete = errors.New("a descriptor is missing")

// stored is what has come back of one entry.
type stored struct {
	record *os.File
	files  map[string]*os.File
}

// Restore makes entries of the descriptors that the manager passed, for s.Adopt, and closes them, each entry's before it
// looks at the next: there may be as many as this process can have. What is damaged or
// foreign is refused with a warning that names it; what is ours of it leaves the store.
func (k *Keeper) Restore(passed []*os.File, s *store.Store) []*store.Adoption {
	defer func() {
		for _, f := range passed {
			_ = f.Close()
		}
	}()
	byID := map[string]*store.Adoption{}
	for _, e := range k.sorted(passed) {
		a, rec, err := e.adoption(s)
		e.close()
		if err == nil && byID[a.ID] != nil {
			err = fmt.Errorf("%s: %w", a.ID, store.ErrExists)
			a.Close()
			_ = unix.Close(rec.fd)
		}
		if err != nil {
			names := e.names()
			k.log.Warn("what the service manager kept is not restored", "descriptors", strings.Join(names, " "), "error", err)
			k.mu.Lock()
			k.remove(names)
			k.mu.Unlock()
			continue
		}
		byID[a.ID] = a
		k.mu.Lock() // not around the store, which takes its own lock first
		k.records[a.Serial] = rec
		k.used += len(rec.names)
		k.mu.Unlock()
	}
	var out []*store.Adoption
	for _, a := range byID {
		out = append(out, a)
	}
	return out
}

// sorted groups the descriptors by entry, the newest first.
func (k *Keeper) sorted(passed []*os.File) []*stored {
	entries := map[uint64]*stored{}
	for _, f := range passed {
		serial, isRecord, ok := parseName(f.Name())
		if !ok {
			k.log.Warn("a descriptor from the service manager is none of this daemon's", "descriptor", f.Name())
			continue
		}
		e := entries[serial]
		if e == nil {
			e = &stored{files: map[string]*os.File{}}
			entries[serial] = e
		}
		if isRecord {
			e.record = f
		} else {
			e.files[f.Name()] = f
		}
	}
	serials := make([]uint64, 0, len(entries))
	for serial := range entries {
		serials = append(serials, serial)
	}
	sort.Slice(serials, func(i, j int) bool { return serials[i] > serials[j] })
	out := make([]*stored, 0, len(entries))
	for _, serial := range serials {
		out = append(out, entries[serial])
	}
	return out
}

func parseName(name string) (entry uint64, isRecord, ok bool) {
	numbers, ours := strings.CutPrefix(name, prefix)
	first, second, isFile := strings.Cut(numbers, "-")
	entry, err := strconv.ParseUint(first, 10, 64)
	if isFile && err == nil {
		_, err = strconv.ParseUint(second, 10, 64)
	}
	return entry, !isFile, ours && err == nil
}

func (e *stored) names() []string {
	var names []string
	if e.record != nil {
		names = append(names, e.record.Name())
	}
	for name := range e.files {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (e *stored) close() {
	if e.record != nil {
		_ = e.record.Close()
	}
	for _, f := range e.files {
		_ = f.Close()
	}
}

// adoption puts an entry together, with duplicates of the descriptors.
func (e *stored) adoption(s *store.Store) (*store.Adoption, *record, error) {
	if e.record == nil {
		return nil, nil, fmt.Errorf("%w: the record", errIncomplete)
	}
	r, files, err := readRecord(int(e.record.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", e.record.Name(), err)
	}
	rec := &record{names: []string{recordName(r.Serial)}}
	if rec.names[0] != e.record.Name() || r.Staging {
		return nil, nil, fmt.Errorf("%s: %w: it is that of entry %d", e.record.Name(), errRecord, r.Serial)
	}
	var passed []store.Passed
	for _, f := range files {
		rec.names = append(rec.names, fileName(f))
		var fd int
		if fd, err = e.dup(f); err != nil {
			break
		}
		passed = append(passed, store.Passed{FileRecord: f, FD: fd})
	}
	if err != nil {
		for _, p := range passed {
			_ = unix.Close(p.FD)
		}
		return nil, nil, fmt.Errorf("%s: %w", r.ID, err)
	}
	a, err := s.NewAdoption(r, passed)
	if err != nil {
		return nil, nil, err
	}
	if rec.fd, err = dup(e.record); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, rec, nil
}

func (e *stored) dup(f schema.FileRecord) (int, error) {
	name := fileName(f)
	if e.files[name] == nil {
		return -1, fmt.Errorf("%w: %s (%s)", errIncomplete, name, f.Name)
	}
	return dup(e.files[name])
}

func dup(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("dup %s: %w", f.Name(), err)
	}
	return fd, nil
}
