package store

import (
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

// Summaries tells of all published entries, by id. It opens and reads nothing.
func (s *Store) Summaries() []Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Summary, 0, len(s.entries))
	for _, e := range s.entries {
		x := Summary{
			Info: e.info(), ClassName: e.facts.className, ModelName: e.facts.modelName, Loader: e.facts.loader,
			CreatedNS: e.facts.createdNS, FillSeconds: e.facts.fillSeconds, StructureBytes: e.blobs.named(StructureName).mem.bytes,
		}
		for _, f := range e.arenas {
			x.Arenas = append(x.Arenas, ArenaSize{Name: f.name, Bytes: f.mem.bytes})
		}
		slices.SortFunc(x.Arenas, func(a, b ArenaSize) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Summary) int { return strings.Compare(a.ID, b.ID) })
	return out
}
