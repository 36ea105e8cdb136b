package store

import "github.com/dustin/go-humanize"

// relief is the part of the idle bytes that one event of memory pressure takes: enough for a machine in need to be
// helped by a few events, little enough for a short one to leave most of the cache.
const relief = 4 // a quarter

// Relieve evicts idle entries, least recently used first, until a quarter of the bytes that idle entries hold is free,
// and at least one entry. source is what told of processes that wait for memory, for the log: when there is memory
// enough, they wait for another reason, such as the limit of a cgroup of theirs, and nothing is done. It returns how many
// entries went.
func (s *Store) Relieve(source string) int {
	if scarce, err := s.os.Scarce(); err == nil && !scarce {
		s.log.Debug("processes wait for memory, though there is some", "source", source)
		return 0
	}
	if err := s.enter(); err != nil {
		return 0 // another daemon has the entries
	}
	defer s.mu.Unlock()
	s.counters.PressureEvents++
	_, idle := s.victims(s.idle(), func(uint64, int) bool { return false })
	victims, sum := s.victims(s.idle(), func(sum uint64, n int) bool { return n > 0 && sum >= idle/relief })
	if len(victims) == 0 {
		if !s.helpless {
			s.log.Warn("short of memory, and no entry is idle", "source", source, "entries", len(s.entries),
				"cached", humanize.IBytes(s.bytes[inCache]))
		}
		s.helpless = true
		return 0
	}
	s.helpless = false
	for _, e := range victims {
		s.evict(e, ReasonPressure)
	}
	s.log.Warn("short of memory, evicted idle entries", "source", source, "entries", len(victims),
		"size", humanize.IBytes(sum))
	return len(victims)
}
