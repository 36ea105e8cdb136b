package store

import (
	"cmp"
	"slices"
	"strings"
)

// Summary is what a list of all entries tells of one.
type Summary struct {
	Info
	ClassName, ModelName, Loader string  // as in the manifest
	CreatedNS                    int64   // Unix time, nanoseconds
	FillSeconds                  float64 // what the uncached load took
	StructureBytes               uint64
	Arenas                       []ArenaSize // by name
}

// ArenaSize is the size of a file under tensors/, in bytes.
type ArenaSize struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"nbytes"`
}

// ArenaName names an arena of a published entry.
type ArenaName struct{ ID, Name string }

// ArenasOfSize finds the published arenas of one user that have that size in bytes, last used first, limit at most. It
// goes over all entries: a fill asks once for each of its arenas, and an index would have to follow every commit,
// eviction and takeover.
func (s *Store) ArenasOfSize(uid uint32, bytes uint64, limit int) []ArenaName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*File
	for _, e := range s.entries {
		if e.owner.UID != uid {
			continue
		}
		for _, f := range e.arenas {
			if f.mem.bytes == bytes {
				found = append(found, f)
			}
		}
	}
	slices.SortFunc(found, func(a, b *File) int {
		return cmp.Or(b.entry.lastUse.Compare(a.entry.lastUse), cmp.Compare(b.serial, a.serial))
	})
	out := make([]ArenaName, 0, min(limit, len(found)))
	for _, f := range found[:min(limit, len(found))] {
		out = append(out, ArenaName{f.entry.id, f.name})
	}
	return out
}

// Summaries tells of all published entries, by id. It opens and reads nothing.
func (s *Store) Summaries() []Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Summary, 0, len(s.entries))
	for _, e := range s.entries {
		x := Summary{
			Info: e.info(), ClassName: e.facts.className, ModelName: e.facts.modelName, Loader: e.facts.loader,
			CreatedNS: e.facts.createdNS, FillSeconds: e.facts.fillSeconds, StructureBytes: e.blobs[StructureName].mem.bytes,
		}
		for name, f := range e.arenas {
			x.Arenas = append(x.Arenas, ArenaSize{Name: name, Bytes: f.mem.bytes})
		}
		slices.SortFunc(x.Arenas, func(a, b ArenaSize) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Summary) int { return strings.Compare(a.ID, b.ID) })
	return out
}
