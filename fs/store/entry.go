package store

import (
	"slices"
	"sort"
	"time"
)

// State is where an entry is in its life.
type State uint8

// The states of an entry. Only these changes happen: Staging to Published or Gone, Published to Tombstone or Gone.
const (
	Staging   State = iota // being filled
	Published              // complete and immutable
	Tombstone              // without bytes; its names are being removed one by one
	Gone
)

// Names of the files and folders in an entry.
const (
	ManifestName  = "manifest"
	StructureName = "structure.pkl"
	JSONName      = "manifest.json"
	TensorsName   = "tensors"
	StoragesName  = "storages"
)

// Entry is one cached pipeline, or the fill that becomes one.
type Entry struct {
	store   *Store
	id      string
	serial  uint64
	owner   Caller
	created time.Time // of the staging

	// guarded by store.mu
	state      State
	hadLock    bool // its filler held a handle on the lock when it began
	committing bool
	abandoned  bool // the filler went away while committing
	moved      bool // a staging that another daemon has now
	hasTensors bool // the folder tensors/ was made
	pinned     bool
	promised   uint64 // part of Store.promised: bytes that were reserved and not used yet
	lockPID    int    // of the filler, or of the daemon that stands in for it
	blobs      fileList
	arenas     fileList
	hits       uint64
	lastUse    time.Time
	letGo      time.Time     // the end of the last lease, or of a pin
	facts      facts         // set once, by Commit
	tomb       *tombstone    // set once, when state becomes Tombstone
	released   chan struct{} // gets a token when a write handle of a file in it is released
	jsonSize   uint64        // of manifest.json, 0 until it is asked for
}

// ID is the name of the folder.
func (e *Entry) ID() string { return e.id }

// Serial is a number that no other entry or file of this store ever has.
func (e *Entry) Serial() uint64 { return e.serial }

// Owner is who made the staging.
func (e *Entry) Owner() Caller { return e.owner }

// Created is when the staging was made.
func (e *Entry) Created() time.Time { return e.created }

// State returns the current state.
func (e *Entry) State() State {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return e.state
}

// Moved says whether this was a staging that another daemon has now.
func (e *Entry) Moved() bool {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return e.moved
}

// HasTensors says whether the folder tensors/ shows.
func (e *Entry) HasTensors() bool {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	switch e.state {
	case Staging:
		return e.hasTensors
	case Published:
		return true
	case Tombstone:
		return !e.tomb.removed[TensorsName]
	default:
		return false
	}
}

// File returns a blob (dir "") or an arena (dir TensorsName) that still has its name. In a tombstone the file is there
// to be unlinked and can no longer be opened.
func (e *Entry) File(dir, name string) (*File, error) {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.moved {
		return nil, ErrSuperseded
	}
	f := e.files(dir).named(name)
	if f == nil || e.state == Gone || e.hidden(dir, name) {
		return nil, ErrNotFound
	}
	return f, nil
}

// FileNames returns the names that File finds in dir, sorted.
func (e *Entry) FileNames(dir string) []string {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.state == Gone {
		return nil
	}
	var out []string
	for _, f := range *e.files(dir) {
		if !e.hidden(dir, f.name) {
			out = append(out, f.name)
		}
	}
	sort.Strings(out)
	return out
}

func (e *Entry) files(dir string) *fileList {
	if dir == TensorsName {
		return &e.arenas
	}
	return &e.blobs
}

// fileList is the files of one folder, few of them: a map of three would take as much memory as the entry.
type fileList []*File

// named returns the file of that name, or nil.
func (l fileList) named(name string) *File {
	for _, f := range l {
		if f.name == name {
			return f
		}
	}
	return nil
}

func (l *fileList) add(f *File) { *l = append(*l, f) }

func (l *fileList) remove(f *File) {
	*l = slices.DeleteFunc(*l, func(x *File) bool { return x == f })
}

// Shows says whether a name that the daemon adds to a published entry (manifest.json, storages, a storage) is there.
func (e *Entry) Shows(dir, name string) bool {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	switch e.state {
	case Published:
		return true
	case Tombstone:
		return !e.hidden(dir, name)
	default:
		return false
	}
}

// hidden says whether a tombstone has lost that name.
func (e *Entry) hidden(dir, name string) bool {
	return e.tomb != nil && e.tomb.removed[join(dir, name)]
}

// Readable says whether files can be opened: not in tombstones and what has gone.
func (e *Entry) Readable() bool {
	s := e.State()
	return s == Staging || s == Published
}

// allFiles calls f for every file of the entry.
func (e *Entry) allFiles(f func(*File)) {
	for _, b := range e.blobs {
		f(b)
	}
	for _, a := range e.arenas {
		f(a)
	}
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Info is a snapshot of what is known about an entry besides its manifest.
type Info struct {
	ID        string
	Owner     Caller
	State     State
	Pinned    bool
	Hits      uint64
	Leases    int    // open handles on its arenas
	LeasePIDs []int  // processes that opened them, each once, ascending; unknown ones are left out
	Bytes     uint64 // of all its files
	Shared    uint64 // part of Bytes: memory that published entries have in common
	LastUse   time.Time
}

// Info returns a snapshot.
func (e *Entry) Info() Info {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return e.info()
}

func (e *Entry) info() Info {
	info := Info{
		ID: e.id, Owner: e.owner, State: e.state, Pinned: e.pinned, Hits: e.hits, LastUse: e.lastUse,
	}
	pids := map[int]bool{}
	e.allFiles(func(f *File) {
		info.Bytes += f.mem.bytes
		if f.mem.files[inCache] > 1 {
			info.Shared += f.mem.bytes
		}
		if f.kind != arena {
			return
		}
		for h := range f.handles {
			info.Leases++
			if h.pid != 0 {
				pids[h.pid] = true
			}
		}
	})
	for pid := range pids {
		info.LeasePIDs = append(info.LeasePIDs, pid)
	}
	sort.Ints(info.LeasePIDs)
	return info
}

// leased says whether an arena is open.
func (e *Entry) leased() bool {
	for _, a := range e.arenas {
		if len(a.handles) > 0 {
			return true
		}
	}
	return false
}

// idle says whether the entry may be evicted although nobody asked for that.
func (e *Entry) idle() bool { return !e.pinned && !e.leased() }

// idleSince is when an idle entry was last used, leased or pinned.
func (e *Entry) idleSince() time.Time {
	if e.letGo.After(e.lastUse) {
		return e.letGo
	}
	return e.lastUse
}

// wasLetGo notes that the entry has been leased or pinned until now.
func (e *Entry) wasLetGo() {
	e.letGo = e.store.opts.Now()
	e.store.mayExpire()
}

// Hit counts a reader that loads the entry, and makes it the most recently used one.
func (e *Entry) Hit() {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if e.state != Published {
		return
	}
	e.hits++
	e.store.counters.Hits++
	e.lastUse = e.store.opts.Now()
	e.store.update(e)
}

// SetPinned pins the entry, so that it is never evicted to make room, or unpins it.
func (e *Entry) SetPinned(c Caller, pinned bool) error {
	if err := e.store.enter(); err != nil {
		return err
	}
	defer e.store.mu.Unlock()
	if e.state != Published {
		return ErrNotFound
	}
	if !c.Owns(e.owner) {
		return ErrNotOwner
	}
	if e.pinned && !pinned {
		e.wasLetGo()
	}
	e.pinned = pinned
	e.store.update(e)
	return nil
}
