package store

import (
	"errors"
	"fmt"
)

// Truncate sets the size. An arena gets it once, and all its memory with it; 0 is taken as "not yet". Room is made by
// evicting where that is needed.
func (f *File) Truncate(size uint64) error {
	if f.kind == blob {
		return f.truncateBlob(size)
	}
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaitThaw()
	switch {
	case f.entry.state == Published || f.entry.state == Tombstone:
		return ErrReadOnly
	case s.superseded && f.writers == 0:
		return ErrSuperseded
	case !f.attached:
		return ErrNotFound
	case f.entry.committing || f.busy:
		return ErrBusy
	case f.sized && size == f.mem.bytes:
		return nil
	case f.sized:
		return fmt.Errorf("%w: %s has %d bytes, asked for %d", ErrResize, f.name, f.mem.bytes, size)
	case size == 0:
		return nil
	}
	if err := f.entry.claim(size, true, f.entry.id+"/"+f.name); err != nil {
		return err
	}
	f.resize(size)
	f.busy = true
	f.refs++
	s.pending += size
	defer func() {
		s.pending -= size
		f.busy = false
		s.changed.Broadcast()
		if !f.sized {
			f.resize(0)
		}
		f.unref()
	}()
	if err := f.allocate(size); err != nil {
		s.log.Error("allocation failed", "entry", f.entry.id, "arena", f.name, "bytes", size, "error", err)
		return fmt.Errorf("allocate %s: %w", f.name, err)
	}
	return nil
}

// allocate lets go of s.mu meanwhile.
func (f *File) allocate(size uint64) error {
	s, fd := f.store, f.fd
	s.mu.Unlock()
	huge, err := false, errors.New("not done")
	defer func() {
		s.mu.Lock()
		f.sized, f.huge = err == nil, huge
	}()
	huge, err = allocate(s.os, fd, size, s.opts.HugePages)
	return err
}

func (f *File) truncateBlob(size uint64) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if f.committing() {
		return ErrBusy // writes of handles that the commit waits for may still come, but no new size
	}
	if err := f.extend(size); err != nil {
		return err
	}
	defer f.store.done(f)
	if f.packed() {
		return ErrReadOnly // extend has refused it: it is published
	}
	if err := f.store.os.Ftruncate(f.fd, int64(size)); err != nil {
		return fmt.Errorf("ftruncate %s: %w", f.name, err)
	}
	f.settle(size)
	return nil
}

func (f *File) committing() bool {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	return f.entry.committing
}

// WriteAt writes to a file of a staging and returns how many bytes were written.
func (h *Handle) WriteAt(data []byte, off int64) (int, error) {
	f := h.file
	if !h.write || off < 0 {
		return 0, ErrReadOnly
	}
	end := uint64(off) + uint64(len(data))
	if f.kind == arena {
		if size := f.Size(); end > size {
			return 0, fmt.Errorf("%w: write up to %d of %d bytes", ErrResize, end, size)
		}
		return f.pwrite(data, off)
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	if err := f.extend(max(end, f.Size())); err != nil {
		return 0, err
	}
	defer f.store.done(f)
	n, err := f.pwrite(data, off)
	if n > 0 {
		f.settle(max(uint64(off)+uint64(n), f.Size()))
	}
	return n, err
}

func (f *File) pwrite(data []byte, off int64) (int, error) {
	if f.packed() {
		return 0, ErrReadOnly // extend has refused it: it is published
	}
	n, err := f.store.os.Pwrite(f.fd, data, off)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", f.name, err)
	}
	return n, nil
}

// memoryCheckStep is how much a blob grows between two looks at the free memory: a look costs more than a write.
const memoryCheckStep = 16 << 20

// extend reserves what a blob needs to have size bytes and takes a reference, which Store.done gives back.
func (f *File) extend(size uint64) error {
	if size > MaxBlobBytes {
		return fmt.Errorf("%w: %s would have %d bytes, at most %d", ErrTooLarge, f.name, size, MaxBlobBytes)
	}
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.entry.state == Published || f.entry.state == Tombstone:
		return ErrReadOnly
	case !f.attached:
		return ErrNotFound
	}
	if have := f.mem.bytes; size > have {
		look := size/memoryCheckStep != have/memoryCheckStep
		if err := f.entry.claim(size-have, look, f.entry.id+"/"+f.name); err != nil {
			return err
		}
		f.promised = size - have
		s.promised += f.promised
	}
	f.refs++
	return nil
}

// settle records the size that a blob now has.
func (f *File) settle(size uint64) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.fulfil()
	f.resize(size)
	f.written = f.store.opts.Now().UnixNano()
}

// fulfil ends what extend promised: the bytes count by themselves now, or do not come.
func (f *File) fulfil() {
	f.store.promised -= f.promised
	f.promised = 0
}

// done gives back the reference of extend.
func (s *Store) done(f *File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.fulfil()
	f.unref()
}
