package store

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Check verifies the invariants: totals that agree with the files, states that agree with the tables, memfds that are
// open exactly while something refers to them, and seals on all that is published and not packed. For tests.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	var sum [buckets]uint64
	holders := map[*memory][]*File{}
	slots := map[uint32]*File{}
	for f := range s.files {
		holders[f.mem] = append(holders[f.mem], f)
		refs := int32(len(f.handles))
		if f.attached {
			refs++
		}
		if f.refs < refs || f.refs == 0 {
			fail("%s/%s: %d references, at least %d", f.entry.id, f.name, f.refs, refs)
		}
		if f.attached == (f.in == inDraining) {
			fail("%s/%s: attached %v, bucket %d", f.entry.id, f.name, f.attached, f.in)
		}
		if f.packed() {
			if twice := slots[f.slot]; twice != nil {
				fail("%s/%s and %s/%s have one slot", f.entry.id, f.name, twice.entry.id, twice.name)
			}
			slots[f.slot] = f
			if err := s.checkPacked(f); err != nil {
				fail("%s/%s: %w", f.entry.id, f.name, err)
			}
		} else if size, err := fileSize(f.fd); err != nil {
			fail("%s/%s: %v", f.entry.id, f.name, err)
		} else if (f.kind == blob || f.sized) && !f.busy && f.refs == refs && size != f.mem.bytes {
			fail("%s/%s: has %d bytes, counts for %d", f.entry.id, f.name, size, f.mem.bytes)
		}
	}
	for m, files := range holders {
		sum[m.in()] += m.bytes
		var want [buckets]int
		for _, f := range files {
			want[f.in]++
			if idOf(f.fd) != idOf(files[0].fd) || f.entry.owner.UID != files[0].entry.owner.UID {
				fail("%s/%s and %s/%s share a memory", f.entry.id, f.name, files[0].entry.id, files[0].name)
			}
		}
		if want != m.files {
			fail("%s/%s: its memory counts %v files, there are %v", files[0].entry.id, files[0].name, m.files, want)
		}
	}
	if len(slots) != s.packed {
		fail("%d files are packed, counted %d", len(slots), s.packed)
	}
	if err := s.pack.check(); err != nil {
		fail("pack: %w", err)
	}
	if sum != s.bytes {
		fail("bytes %v, files have %v", s.bytes, sum)
	}
	listed := 0
	for key, files := range s.alike {
		listed += len(files)
		for _, f := range files {
			if f.kind != arena || f.in != inCache || f.ofSize() != key {
				fail("%s/%s: listed as one of %d bytes of user %d", f.entry.id, f.name, key.bytes, key.uid)
			}
		}
	}
	for f := range s.files {
		if f.kind == arena && f.in == inCache {
			listed--
		}
	}
	if listed != 0 {
		fail("%d arenas too many are listed by size", listed)
	}
	if s.pending > s.bytes[inStaging]+s.bytes[inDraining] {
		fail("pending %d of %v", s.pending, s.bytes)
	}
	var promised uint64
	for f := range s.files {
		promised += f.promised
	}
	for _, e := range s.staging {
		promised += e.promised
	}
	if promised != s.promised {
		fail("promised %d, files have %d", s.promised, promised)
	}
	table := func(name string, m map[string]*Entry, want State, in bucket) {
		for id, e := range m {
			if e.id != id || e.state != want {
				fail("%s[%s]: id %s, state %d", name, id, e.id, e.state)
			}
			e.allFiles(func(f *File) {
				if want == Tombstone {
					return
				}
				if _, open := s.files[f]; !open || !f.attached || f.in != in {
					fail("%s[%s]/%s: open %v, attached %v, bucket %d", name, id, f.name, open, f.attached, f.in)
					return
				}
				if want != Published {
					return
				}
				if f.writers > 0 {
					fail("%s[%s]/%s: %d writers", name, id, f.name, f.writers)
				}
				if f.packed() {
					return // the daemon is all that protects it
				}
				if seals, err := unix.FcntlInt(uintptr(f.fd), unix.F_GET_SEALS, 0); err != nil || seals&baseSeals != baseSeals {
					fail("%s[%s]/%s: seals %#x (%v)", name, id, f.name, seals, err)
				}
			})
		}
	}
	table("entries", s.entries, Published, inCache)
	table("staging", s.staging, Staging, inStaging)
	table("tombs", s.tombs, Tombstone, inDraining)
	return errors.Join(errs...)
}

// checkPacked checks what a packed file must be: one that nobody writes and nobody else is given, in a slot that is its own.
func (s *Store) checkPacked(f *File) error {
	size, err := fileSize(f.fd)
	switch {
	case err != nil:
		return err
	case f.kind != blob || f.entry.state == Staging || f.writers > 0 || f.foreign:
		return errors.New("must not be packed")
	case f.fd != s.pack.fd || f.slot > s.pack.end || slices.Contains(s.pack.free, f.slot) || slices.Contains(s.pack.full, f.slot):
		return fmt.Errorf("slot %d of descriptor %d is not in use", f.slot, f.fd)
	case f.mem.bytes > slotSize || uint64(f.base())+f.mem.bytes > size || f.mem.holders() != 1:
		return fmt.Errorf("%d bytes at %d of %d, of %d files", f.mem.bytes, f.base(), size, f.mem.holders())
	}
	return nil
}

func (p *pack) check() error {
	// Besides files, what is being taken over has slots.
	if (p.fd >= 0) != (p.used > 0) || p.used+len(p.free)+len(p.full) != int(p.end) {
		return fmt.Errorf("descriptor %d, of %d slots %d in use, %d free, %d to be written over", p.fd, p.end, p.used, len(p.free),
			len(p.full))
	}
	return nil
}
