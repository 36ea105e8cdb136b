package store

import "slices"

// ArenaName names an arena of a published entry.
type ArenaName struct{ ID, Name string }

// alike finds the published arenas of one user that have one size, in the order in which they were published: those
// that a new one may be equal to. Guarded by store.mu.
type alike map[ofSize][]*File

type ofSize struct {
	uid   uint32
	bytes uint64
}

func (f *File) ofSize() ofSize { return ofSize{f.entry.owner.UID, f.mem.bytes} }

func (a alike) add(f *File) {
	if f.kind == arena {
		a[f.ofSize()] = append(a[f.ofSize()], f)
	}
}

func (a alike) remove(f *File) {
	if f.kind != arena {
		return
	}
	key := f.ofSize()
	left := slices.DeleteFunc(a[key], func(x *File) bool { return x == f })
	if len(left) == 0 {
		delete(a, key)
	} else {
		a[key] = left
	}
}

// ArenasOfSize finds the published arenas of one user that have that size in bytes, newest first, limit at most.
func (s *Store) ArenasOfSize(uid uint32, bytes uint64, limit int) []ArenaName {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.alike[ofSize{uid, bytes}]
	found = found[max(0, len(found)-limit):]
	out := make([]ArenaName, 0, len(found))
	for _, f := range slices.Backward(found) {
		out = append(out, ArenaName{f.entry.id, f.name})
	}
	return out
}
