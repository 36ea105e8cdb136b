package store

import (
	"fmt"
	"unique"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// facts are what the store itself needs of a manifest. A decoded manifest takes several times what its file takes, so it
// is not kept.
type facts struct {
	className, modelName, loader string
	scope                        string
	createdNS                    int64
	fillSeconds                  float64
	storages                     int
}

func factsOf(m *schema.Manifest) facts {
	return facts{
		className: unique.Make(m.ClassName).Value(), modelName: unique.Make(m.ModelName).Value(),
		loader: unique.Make(m.Loader).Value(), // many entries have the same
		scope:  m.Scope, createdNS: m.CreatedNS, fillSeconds: m.FillSeconds, storages: len(m.Storages),
	}
}

// recentManifests remembers the manifests that were decoded last: a walk through storages/ asks once for each name.
type recentManifests struct {
	items [4]struct {
		entry    *Entry
		manifest *schema.Manifest
	}
	next int
}

func (r *recentManifests) get(e *Entry) *schema.Manifest {
	for _, x := range r.items {
		if x.entry == e {
			return x.manifest
		}
	}
	return nil
}

func (r *recentManifests) put(e *Entry, m *schema.Manifest) {
	if r.get(e) != nil {
		return
	}
	r.items[r.next].entry, r.items[r.next].manifest = e, m
	r.next = (r.next + 1) % len(r.items)
}

func (r *recentManifests) forget(e *Entry) {
	for i := range r.items {
		if r.items[i].entry == e {
			r.items[i].entry, r.items[i].manifest = nil, nil
		}
	}
}

// Manifest returns the decoded manifest, nil before the entry is published, after it has gone, and where there is no
// memory to decode it.
func (e *Entry) Manifest() *schema.Manifest {
	s := e.store
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.state {
	case Published:
	case Tombstone:
		return e.tomb.manifest
	default:
		return nil
	}
	if m := s.recent.get(e); m != nil {
		return m
	}
	f := e.blobs.named(ManifestName)
	f.refs++
	defer f.unref()
	m, err := s.decode(f)
	if err != nil {
		s.log.Error("cannot decode a manifest", "entry", e.id, "error", err) // it was valid when it was committed
		return nil
	}
	if e.state == Published {
		s.recent.put(e, m)
	}
	return m
}

// decode lets go of s.mu meanwhile; the caller has a reference to the file.
func (s *Store) decode(f *File) (*schema.Manifest, error) {
	at, size := f.place, f.mem.bytes
	s.mu.Unlock()
	defer s.mu.Lock()
	return decodeAt(at, size)
}

// decodeAt decodes from a mapping, so that a large manifest does not take its size once more.
func decodeAt(at place, size uint64) (*schema.Manifest, error) {
	if size == 0 {
		return nil, fmt.Errorf("%w: empty", schema.ErrMalformed)
	}
	buf, err := unix.Mmap(at.fd, at.base(), int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map manifest: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	return schema.Decode(buf)
}

// JSONSize returns the size of manifest.json, 0 when there is none. The first call renders it.
func (e *Entry) JSONSize() uint64 {
	e.store.mu.Lock()
	known := e.jsonSize
	e.store.mu.Unlock()
	if known > 0 {
		return known
	}
	m := e.Manifest()
	if m == nil {
		return 0
	}
	text, err := m.JSON()
	if err != nil {
		return 0 // an open says why
	}
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	e.jsonSize = uint64(len(text))
	return e.jsonSize
}
