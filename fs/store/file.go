package store

import (
	"fmt"
	"sync"
	"time"
	"unique"

	"golang.org/x/sys/unix"
)

type fileKind uint8

const (
	blob  fileKind = iota // manifest, structure.pkl: grows by writing
	arena                 // gets its size and all of its memory at once
)

// File is an arena, a manifest or a structure.pkl: a memfd, or in a published entry also a slot of the pack.
type File struct {
	store  *Store
	entry  *Entry
	name   string
	serial uint64

	writing sync.Mutex // held while a blob is written, so that its size and its bytes agree; taken before store.mu
	kind    fileKind

	// guarded by store.mu. There are tens of thousands of files, so small fields stand side by side.
	in       bucket
	attached bool
	sized    bool // an arena that has its memory
	busy     bool // an arena that is being allocated
	huge     bool
	foreign  bool  // another daemon still has handles for writing, so only the kernel knows the size
	refs     int32 // the entry, every handle, and slow work under way
	writers  int32
	place    // valid while refs > 0, and the same while there is a handle
	mem      *memory
	promised uint64               // part of Store.promised
	written  int64                // when it was, in nanoseconds
	handles  map[*Handle]struct{} // nil when empty
}

// Name is the name in its folder.
func (f *File) Name() string { return f.name }

// Entry is what the file belongs, or belonged, to.
func (f *File) Entry() *Entry { return f.entry }

// IsArena says whether the file lies in tensors/.
func (f *File) IsArena() bool { return f.kind == arena }

// Serial is a number that no other entry or file of this store ever has.
func (f *File) Serial() uint64 { return f.serial }

// Size returns the size in bytes, 0 for an arena before its ftruncate.
func (f *File) Size() uint64 {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if f.foreign {
		f.settleSize()
	}
	if f.kind == arena && !f.sized {
		return 0
	}
	return f.mem.bytes
}

// ModTime is the time of the last write to a blob, of the creation of an arena.
func (f *File) ModTime() time.Time {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return time.Unix(0, f.written)
}

// Handle is an open file. It keeps the memory until Release.
type Handle struct {
	file     *File
	pid      int
	write    bool
	released bool // guarded by store.mu
}

// File is what the handle is open on.
func (h *Handle) File() *File { return h.file }

// FD returns the memfd that the bytes are in, valid until Release. It must not be closed, nor, but for that of an arena,
// be given to anybody: it may be the pack.
func (h *Handle) FD() int { return h.file.fd }

// Base is where in FD the bytes begin; 0 for an arena.
func (h *Handle) Base() int64 { return h.file.base() }

// Open opens the file; pid is the process that asks, for Info.LeasePIDs.
func (f *File) Open(write bool, pid int) (*Handle, error) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if write {
		f.store.awaitThaw()
	}
	e := f.entry
	switch {
	case f.store.superseded && (e.state == Staging || e.moved):
		return nil, ErrSuperseded
	case !f.attached:
		return nil, ErrNotFound // evicted or unlinked while its name was being resolved
	case write && e.state != Staging:
		return nil, ErrReadOnly
	case write && e.committing:
		return nil, ErrBusy
	}
	return f.open(write, pid), nil
}

func (f *File) open(write bool, pid int) *Handle {
	h := &Handle{file: f, write: write, pid: pid}
	if f.handles == nil {
		f.handles = map[*Handle]struct{}{}
	}
	f.handles[h] = struct{}{}
	f.refs++
	if write {
		f.writers++
	}
	return h
}

// Release closes the handle; the second call does nothing.
func (h *Handle) Release() {
	f := h.file
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if h.write {
		f.store.awaitThaw()
	}
	if h.released {
		return
	}
	h.released = true
	if delete(f.handles, h); len(f.handles) == 0 {
		f.handles = nil // there are many files, and few are open
	}
	if h.write {
		f.writers--
		f.settleForeign()
		f.store.outgrown(f)
		select {
		case f.entry.released <- struct{}{}:
		default:
		}
	}
	if f.kind == arena && f.entry.state == Published && !f.entry.leased() {
		f.entry.wasLetGo()
	}
	f.unref()
}

// unref drops one reference and frees the memory with the last one.
func (f *File) unref() {
	f.refs--
	if f.refs > 0 {
		return
	}
	if f.packed() {
		f.store.packed--
	}
	f.store.vacate(f.place)
	f.place = place{fd: -1}
	f.store.recount(f.mem, func() { f.mem.files[f.in]-- })
	delete(f.store.files, f)
}

// move makes the bytes count elsewhere.
func (f *File) move(to bucket) {
	switch {
	case to == inCache && f.in != inCache:
		f.store.alike.add(f)
	case to != inCache && f.in == inCache:
		f.store.alike.remove(f)
	}
	f.store.recount(f.mem, func() {
		f.mem.files[f.in]--
		f.mem.files[to]++
		f.in = to
	})
}

// resize records what the memory of the file counts for.
func (f *File) resize(size uint64) {
	f.store.recount(f.mem, func() { f.mem.bytes = size })
}

// release takes the file out of its entry.
func (f *File) detach() {
	if !f.attached {
		return
	}
	f.attached = false
	f.move(inDraining)
	f.unref()
}

// create makes a new file in a staging.
func (e *Entry) create(kind fileKind, dir, name string, pid int) (*File, *Handle, error) {
	s := e.store
	if err := s.reserveFile(e.owner.UID); err != nil {
		return nil, nil, err
	}
	fd, err := newMemfd(s.os, "overmind:"+name)
	if err != nil {
		return nil, nil, err
	}
	if err := s.enter(); err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	defer s.mu.Unlock()
	if err := e.mayAdd(dir, name); err != nil {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("create %s: %w", name, err)
	}
	f := e.add(kind, dir, name, fd, newMemory(inStaging))
	return f, f.open(true, pid), nil
}

func (e *Entry) mayAdd(dir, name string) error {
	switch {
	case e.state == Published:
		return ErrReadOnly
	case e.state != Staging || (dir == TensorsName && !e.hasTensors):
		return ErrNotFound
	case e.committing:
		return ErrBusy
	case e.files(dir).named(name) != nil:
		return ErrExists
	case dir == TensorsName && len(e.arenas) >= MaxArenas:
		return fmt.Errorf("%w: %d arenas", ErrTooMany, len(e.arenas))
	}
	return nil
}

// add puts a new file into a staging, for which mem counts it already.
func (e *Entry) add(kind fileKind, dir, name string, fd int, mem *memory) *File {
	s := e.store
	f := &File{
		store: s, entry: e, name: unique.Make(name).Value(), kind: kind, serial: s.nextSerial(),
		place: place{fd: fd}, refs: 1, attached: true, in: inStaging, mem: mem, written: s.opts.Now().UnixNano(),
	}
	e.files(dir).add(f)
	s.files[f] = struct{}{}
	return f
}
