package store

import "time"

// Counters count since the start.
type Counters struct {
	FillsStarted   uint64
	FillsCommitted uint64
	FillsFailed    uint64  // dropped stagings
	FilledBytes    uint64  // of committed fills
	FillSeconds    float64 // what their uncached loads took, as their manifests say
	Hits           uint64
	Refused        uint64 // requests that did not fit
	PressureEvents uint64
	Evictions      map[Reason]uint64
}

// Stats is a snapshot of the totals.
type Stats struct {
	MaxBytes      uint64
	MaxEntries    int
	TTL           time.Duration
	CachedBytes   uint64
	StagingBytes  uint64
	DrainingBytes uint64
	PinnedBytes   uint64 // part of CachedBytes
	SharedBytes   uint64 // how much less than the sum of the entries' sizes CachedBytes is
	Entries       int
	Stagings      int
	Leases        int // on published entries
	HugeArenas    int // published arenas on huge pages
	Arenas        int // published arenas
	Counters      Counters
}

// Stats returns a snapshot.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Stats{
		MaxBytes: s.opts.MaxBytes, MaxEntries: s.opts.MaxEntries, TTL: s.opts.TTL,
		CachedBytes: s.bytes[inCache], StagingBytes: s.bytes[inStaging], DrainingBytes: s.bytes[inDraining],
		Entries: len(s.entries), Stagings: len(s.staging), Counters: s.counters,
	}
	out.Counters.Evictions = make(map[Reason]uint64, len(Reasons))
	for _, r := range Reasons {
		out.Counters.Evictions[r] = s.counters.Evictions[r]
	}
	var sum uint64
	pinned := map[*memory]bool{}
	for _, e := range s.entries {
		e.allFiles(func(f *File) {
			sum += f.mem.bytes
			if e.pinned && !pinned[f.mem] {
				pinned[f.mem] = true
				out.PinnedBytes += f.mem.bytes
			}
			if f.kind == arena {
				out.Leases += len(f.handles)
				out.Arenas++
				if f.huge {
					out.HugeArenas++
				}
			}
		})
	}
	out.SharedBytes = sum - out.CachedBytes
	return out
}

// Full returns how many bytes there are and how many could still be filled, for statfs.
func (s *Store) Full() (total, free uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opts.MaxBytes, shortfall(s.opts.MaxBytes, s.used())
}
