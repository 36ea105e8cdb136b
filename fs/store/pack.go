package store

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// slotSize is what a packed file has at most, in bytes. A mapping begins at a page, and no page of Linux is larger.
const slotSize = 64 << 10

// pack is one memfd for the small files of published entries: a memfd each would take a descriptor each, of which a
// process may have some ten thousand. The memfd is divided into slots, one for each file; of a slot only the pages that
// were written take memory. It is there while a slot is in use.
//
// Nothing seals it, since other slots are still to be written. It stays in this process: nobody else is ever given a
// descriptor on it, and here a slot is written once, by put. Guarded by store.mu.
type pack struct {
	os   *OS
	fd   int      // -1: there is none
	end  uint32   // the last slot that was ever in use; the first one is 1
	free []uint32 // those up to end that are empty
	full []uint32 // those up to end that nobody uses and that could not be emptied
	used int
}

// put copies the size bytes of a sealed memfd into a slot.
func (p *pack) put(from int, size uint64) (slot uint32, err error) {
	data := make([]byte, size)
	if err := readFull(from, data, 0); err != nil {
		return 0, err
	}
	if p.fd < 0 {
		if p.fd, err = newMemfd(p.os, "overmind:pack"); err != nil {
			return 0, err
		}
	}
	switch {
	case len(p.free) > 0:
		slot, p.free = last(p.free)
	case len(p.full) > 0:
		slot, p.full = last(p.full)
		data = append(data, make([]byte, slotSize-size)...) // over what is left of the file before
	default:
		p.end++
		slot = p.end
	}
	p.used++
	if err := writeFull(p.os, p.fd, data, slotBase(slot)); err != nil {
		return 0, errors.Join(err, p.drop(slot))
	}
	return slot, nil
}

// slotBase is where a slot begins in the memfd.
func slotBase(slot uint32) int64 { return (int64(slot) - 1) * slotSize }

func last(slots []uint32) (uint32, []uint32) { return slots[len(slots)-1], slots[:len(slots)-1] }

// drop empties a slot. Where that fails, its memory stays until a later file is written over all of it.
func (p *pack) drop(slot uint32) error {
	if p.used--; p.used == 0 {
		_ = unix.Close(p.fd) // a memfd has nothing to flush
		*p = pack{os: p.os, fd: -1}
		return nil
	}
	if err := p.os.Fallocate(p.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, slotBase(slot), slotSize); err != nil {
		p.full = append(p.full, slot)
		return fmt.Errorf("punch a hole: %w", err)
	}
	p.free = append(p.free, slot)
	return nil
}

// place is where the bytes of a file are: in a memfd of its own, or in a slot of the pack.
type place struct {
	fd   int
	slot uint32 // 0: all of fd
}

func (p place) packed() bool { return p.slot != 0 }

// base is where they begin in fd.
func (p place) base() int64 {
	if !p.packed() {
		return 0
	}
	return slotBase(p.slot)
}

// toPack moves a file from its own sealed memfd into the pack, and closes the memfd, if it is small. Whether it did: what
// does not get there works as well, at the cost of a descriptor.
func (s *Store) toPack(entry, file string, at *place, size uint64) bool {
	if size > slotSize {
		return false
	}
	slot, err := s.pack.put(at.fd, size)
	if err != nil {
		s.log.Debug("a small file keeps a memfd of its own", "entry", entry, "file", file, "error", err)
		return false
	}
	_ = unix.Close(at.fd)
	*at = place{fd: s.pack.fd, slot: slot}
	return true
}

// vacate frees the memory at a place, or this descriptor on it. The caller has s.mu.
func (s *Store) vacate(at place) {
	if !at.packed() {
		_ = unix.Close(at.fd)
		return
	}
	if err := s.pack.drop(at.slot); err != nil {
		s.log.Warn("the memory of a small file is not given back", "bytes", slotSize, "error", err)
	}
}

// packBlobs moves the small files of a published entry, whose memfds are sealed and were checked, into the pack. Only the
// entry and its commit may refer to them: who has one open reads its memfd without asking the store. An entry without
// arenas keeps its memfds: nothing but descriptors bounds how many there are of entries that have next to no bytes.
func (s *Store) packBlobs(e *Entry) {
	if len(e.arenas) == 0 {
		return
	}
	for _, f := range e.blobs {
		if f.refs <= 2 && s.toPack(e.id, f.name, &f.place, f.mem.bytes) {
			f.foreign = false // sealed: nobody changes its size any more
			s.packed++
		}
	}
}

// unpacked returns a sealed memfd with a copy of a packed file, for others to have. The caller closes it.
func (f *File) unpacked() (int, error) {
	calls := f.store.os
	data := make([]byte, f.mem.bytes)
	if err := readFull(f.fd, data, f.base()); err != nil {
		return -1, err
	}
	fd, err := newMemfd(calls, "overmind:"+f.name)
	if err != nil {
		return -1, err
	}
	if err = writeFull(calls, fd, data, 0); err == nil {
		err = seal(calls, fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// lend returns the files of an entry, packed ones as copies, for others to duplicate the descriptors. They are valid
// until release, which takes s.mu to be held, as lend does.
func (e *Entry) lend() (files []Passed, release func(), err error) {
	var held []*File
	var copies []int
	release = func() {
		for _, f := range held {
			f.unref()
		}
		for _, fd := range copies {
			_ = unix.Close(fd)
		}
	}
	e.allFiles(func(f *File) {
		fd := f.fd
		if f.packed() && err == nil {
			if fd, err = f.unpacked(); err == nil {
				copies = append(copies, fd)
			} else {
				err = fmt.Errorf("%s: %w", f.name, err)
			}
		}
		f.refs++
		held = append(held, f)
		files = append(files, f.passed(fd))
	})
	if err != nil {
		release()
		return nil, nil, err
	}
	return files, release, nil
}

func readFull(fd int, data []byte, at int64) error {
	n, err := unix.Pread(fd, data, at)
	if err == nil && n < len(data) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("read a memfd: %w", err)
	}
	return nil
}

func writeFull(os *OS, fd int, data []byte, at int64) error {
	n, err := os.Pwrite(fd, data, at)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write a memfd: %w", err)
	}
	return nil
}
