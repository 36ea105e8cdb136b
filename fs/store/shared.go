package store

import (
	"fmt"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// memory is what is in a memfd. Arenas of several entries may have one in common; each of these files has a descriptor
// of its own on it. Guarded by store.mu.
type memory struct {
	bytes uint64       // part of Store.bytes, once; nothing when no file is left
	files [buckets]int // that have it, by where they count
}

func newMemory(in bucket) *memory {
	m := &memory{}
	m.files[in]++
	return m
}

// holders is how many files have it.
func (m *memory) holders() int {
	n := 0
	for _, files := range m.files {
		n += files
	}
	return n
}

// in says where the bytes count: as cached while an entry has them, as draining when nothing but open handles has.
func (m *memory) in() bucket {
	switch {
	case m.files[inCache] > 0:
		return inCache
	case m.files[inStaging] > 0:
		return inStaging
	}
	return inDraining
}

func (m *memory) counted() uint64 {
	if m.holders() == 0 {
		return 0
	}
	return m.bytes
}

// recount changes a memory and keeps the totals right.
func (s *Store) recount(m *memory, change func()) {
	s.bytes[m.in()] -= m.counted()
	change()
	s.bytes[m.in()] += m.counted()
}

// memfdID tells memfds apart, whatever descriptors there are on them.
type memfdID struct{ dev, ino uint64 }

func idOf(fd int) memfdID {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return memfdID{} // of an open memfd: never
	}
	return memfdID{st.Dev, st.Ino}
}

// known returns the memory of a memfd that came from another daemon, for one more file.
func (s *Store) known(same map[memfdID]*memory, fd int, in bucket) *memory {
	id := idOf(fd)
	m := same[id]
	if m == nil {
		m = newMemory(in)
		same[id] = m
		return m
	}
	s.recount(m, func() { m.files[in]++ })
	return m
}

// Link puts the memory of an arena into a staging, under a name there. The arena must be one of a published entry, and so
// sealed, and all three must have the same owner: ErrNotOwner. It takes no room. That of the staging is a file of its own,
// with a descriptor and a serial number of its own, and outlives the other.
func (e *Entry) Link(from *File, name string, c Caller) (*File, error) {
	s := e.store
	if !schema.ValidArenaName(name) {
		return nil, fmt.Errorf("%w: %q", ErrName, name)
	}
	if err := s.reserveFile(e.owner.UID); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	switch {
	case !c.Owns(e.owner) || from.entry.owner.UID != e.owner.UID:
		return nil, fmt.Errorf("link %s: %w", name, ErrNotOwner)
	case from.entry.state != Published || from.kind != arena || !from.attached:
		return nil, fmt.Errorf("link %s: %w", name, ErrNotFound)
	}
	if err := e.mayAdd(TensorsName, name); err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	// No duplicate: what keeps descriptors over a crash keeps each open file once.
	fd, err := reopen(s.os, from.fd, true)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	s.recount(from.mem, func() { from.mem.files[inStaging]++ })
	f := e.add(arena, TensorsName, name, fd, from.mem)
	f.sized, f.huge = true, from.huge
	s.log.Debug("linked", "entry", e.id, "arena", name, "from", from.entry.id, "bytes", f.mem.bytes)
	return f, nil
}
