package store

import (
	"log/slog"
	"sort"
	"sync"
	"time"
)

// MaxBlobBytes is the largest manifest or structure.pkl, in bytes.
const MaxBlobBytes = 1 << 30

// TombstoneLife is how long the emptied folder of an entry stays after an unlink inside it, and how long it is remembered
// who does that.
const TombstoneLife = 10 * time.Second

// What one user may have, and one staging: more than loaders need, and little for the daemon.
const (
	MaxStagings = 128  // of a user
	MaxArenas   = 128  // of a staging
	MaxLocks    = 1024 // open handles of a user other than root, who takes over those of all when a daemon is replaced
)

// Options configure a Store.
type Options struct {
	MaxBytes   uint64 // cached, staging and draining bytes together
	MaxEntries int    // published entries; 0: no limit
	MaxFiles   int    // open memfds: of an entry those of its arenas, and what is too large for the pack; 0: no limit
	HugePages  bool   // try to allocate huge pages
	// TTL is how long an entry that is neither leased nor pinned stays after its last use; 0: no limit. ExpireIdle has
	// to run.
	TTL    time.Duration
	OS     OS
	Logger *slog.Logger
	// CommitWait bounds each of the two waits of a commit, for writers and for writable mappings; 0: one second.
	CommitWait time.Duration
	Now        func() time.Time // nil: time.Now
	Keeper     Keeper           // nil: nothing outlives the process
}

// Caller is who asks. PID is the process (not the thread), 0 when it is not visible.
type Caller struct {
	UID, GID uint32
	PID      int
}

// Owns says whether the caller may change what owner made.
func (c Caller) Owns(owner Caller) bool { return c.UID == 0 || c.UID == owner.UID }

// bucket says which total the bytes of a file count in.
type bucket uint8

const (
	inStaging bucket = iota
	inCache
	inDraining // let go by the entry, kept by open handles
	buckets
)

// Store holds the entries. All methods may be called concurrently.
type Store struct {
	opts Options
	os   *OS
	log  *slog.Logger

	mu       sync.Mutex // guards everything below and, where their comments say so, fields of entries and files
	closed   bool
	serial   uint64            // last serial number given out
	entries  map[string]*Entry // published
	staging  map[string]*Entry
	tombs    map[string]*Entry      // emptied folders, until they expire
	removals map[string]removal     // by id, see there
	locks    map[string]map[int]int // id -> process -> open lock handles
	locked   map[uint32]int         // user -> open lock handles
	files    map[*File]struct{}     // every file that has memory
	pack     pack
	packed   int // files in the pack
	alike    alike
	bytes    [buckets]uint64
	promised uint64 // what stagings have reserved, and what blobs may grow by in writes that are under way
	pending  uint64 // part of bytes that is being allocated, and so not yet missing from the free memory
	counters Counters
	recent   recentManifests
	helpless bool // the last event of memory pressure found nothing to evict

	becameIdle chan struct{} // gets a token when an entry may have become one that expires

	// of a takeover, see supersede.go
	frozen      bool
	superseded  bool
	predecessor int            // process of the daemon that was taken over from, 0 for none
	changed     *sync.Cond     // on mu: frozen, superseded, or the end of a commit or an allocation
	stands      map[any]func() // what stands for our locks (by id) and writers (by *File) in the other daemon
}

// New returns an empty store.
func New(opts Options) *Store {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.CommitWait == 0 {
		opts.CommitWait = time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		opts:     opts,
		os:       &opts.OS,
		log:      opts.Logger,
		entries:  map[string]*Entry{},
		staging:  map[string]*Entry{},
		tombs:    map[string]*Entry{},
		removals: map[string]removal{},
		locks:    map[string]map[int]int{},
		locked:   map[uint32]int{},
		files:    map[*File]struct{}{},
		pack:     pack{fd: -1},
		alike:    alike{},
		counters: Counters{Evictions: map[Reason]uint64{}},

		becameIdle: make(chan struct{}, 1),
	}
	s.pack.os = s.os
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Close lets go of all entries and refuses new ones. Memory under open handles goes with the process.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, e := range s.entries {
		s.detach(e)
	}
	for _, e := range s.staging {
		s.detach(e)
	}
	clear(s.entries)
	clear(s.staging)
	clear(s.tombs)
}

func (s *Store) nextSerial() uint64 {
	s.serial++
	return s.serial
}

// Published returns the entry of that name, also when only its tombstone is left.
func (s *Store) Published(id string) (*Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := s.published(id); {
	case e != nil:
		return e, nil
	case s.superseded:
		return nil, ErrSuperseded // it may be there
	}
	return nil, ErrNotFound
}

func (s *Store) published(id string) *Entry {
	if e := s.entries[id]; e != nil {
		return e
	}
	return s.tomb(id)
}

// tomb returns the tombstone of that name and forgets it when it has expired.
func (s *Store) tomb(id string) *Entry {
	e := s.tombs[id]
	if e != nil && s.opts.Now().After(e.tomb.expires) {
		delete(s.tombs, id)
		return nil
	}
	return e
}

// PublishedIDs returns the names of all entries and tombstones, sorted.
func (s *Store) PublishedIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.entries)+len(s.tombs))
	for id := range s.entries {
		ids = append(ids, id)
	}
	for id := range s.tombs {
		if s.entries[id] == nil && s.tomb(id) != nil {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids
}

// Staging returns the fill under way of that name.
func (s *Store) Staging(id string) (*Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := s.staging[id]; {
	case s.superseded:
		return nil, ErrSuperseded
	case e != nil:
		return e, nil
	}
	return nil, ErrNotFound
}

// StagingIDs returns the names of all fills under way, sorted.
func (s *Store) StagingIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.staging))
	for id := range s.staging {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}
