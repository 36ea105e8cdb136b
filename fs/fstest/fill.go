// Package fstest fills a cache through its files, as a loader does. For tests.
package fstest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
	"overmind-fs/schema/schematest"
)

// ArenaName is the name of the only arena.
const ArenaName = "model.safetensors"

// StructureNbytes is the size of structure.pkl, unless a Fill says otherwise: too large for the pack.
const StructureNbytes = 300_000

// Fill is one fill. The steps can be called one by one.
type Fill struct {
	Root, ID string
	Size     int64
	Mapped   bool   // copy through a shared mapping; not for the process that serves the mount
	From     string // another entry's folder, whose arena is linked instead of one being written
	// Structure is the size of structure.pkl, 0: StructureNbytes.
	Structure int64
	Change    func(*schema.Manifest)
}

// Small has files that are all packed, but for the arena.
func Small(root, id string) Fill { return Fill{Root: root, ID: id, Size: 64, Structure: 1000} }

// Staging is the folder that is filled.
func (f Fill) Staging() string { return filepath.Join(f.Root, "staging", f.ID) }

// Entry is the folder that is published.
func (f Fill) Entry() string { return filepath.Join(f.Root, "pipelines", f.ID) }

// Arena is the path of the arena under a folder.
func Arena(folder string) string { return filepath.Join(folder, "tensors", ArenaName) }

// Content is what the arena holds, always the same for a size.
func Content(size int64) []byte {
	out := make([]byte, size)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(out)
	return out
}

func (f Fill) structure() int64 {
	if f.Structure > 0 {
		return f.Structure
	}
	return StructureNbytes
}

// Manifest describes the arena: all of it as storage 0, the middle half as storage 1, and an empty storage.
func (f Fill) Manifest() *schema.Manifest {
	size := uint64(f.Size)
	m := &schema.Manifest{
		Format: schema.Format, ID: f.ID, ClassName: "test.Model", ModelName: "tiny", Loader: "test.load", CreatedNS: 1,
		FillSeconds: 2.5, StructureNbytes: uint64(f.structure()),
		Arenas:       []schema.Arena{{Name: ArenaName, Nbytes: size}},
		Storages:     []schema.Storage{{Nbytes: size}, {Offset: size / 4, Nbytes: size / 2}, {}},
		StorageNames: []string{"all", "half/way", ""},
		Dtypes:       []string{"uint8"}, Devices: []string{"cpu"},
		Tensors: []schema.Tensor{{Ndim: 1}}, Dims: []int64{f.Size, 1},
		Key: []schema.Fact{{Name: "path", Value: "/models/tiny"}},
	}
	if f.Change != nil {
		f.Change(m)
	}
	return m
}

// Check compares all files of the entry with what Run has written.
func (f Fill) Check() error {
	for path, want := range map[string][]byte{
		filepath.Join(f.Entry(), "manifest"):      schematest.Encode(f.Manifest()),
		filepath.Join(f.Entry(), "structure.pkl"): Content(f.structure()),
		Arena(f.Entry()):                          Content(f.Size),
	} {
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s has other bytes: %d of them, want %d", path, len(got), len(want))
		}
	}
	return nil
}

// Stage makes the staging and everything in it.
func (f Fill) Stage() error {
	if err := os.Mkdir(f.Staging(), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(f.Staging(), "tensors"), 0o755); err != nil {
		return err
	}
	if err := f.makeArena(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.Staging(), "structure.pkl"), Content(f.structure()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.Staging(), "manifest"), schematest.Encode(f.Manifest()), 0o644)
}

func (f Fill) makeArena() error {
	if f.From == "" {
		return f.WriteArena()
	}
	if err := unix.Link(Arena(f.From), Arena(f.Staging())); err != nil {
		return fmt.Errorf("link arena: %w", err)
	}
	return nil
}

// WriteArena creates, sizes, writes and closes the arena.
func (f Fill) WriteArena() error {
	fd, err := unix.Open(Arena(f.Staging()), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("create arena: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Ftruncate(fd, f.Size); err != nil {
		return fmt.Errorf("size arena: %w", err)
	}
	data := Content(f.Size)
	if f.Mapped {
		mem, err := unix.Mmap(fd, 0, int(f.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map arena: %w", err)
		}
		copy(mem, data)
		return unix.Munmap(mem)
	}
	for off := 0; off < len(data); {
		n, err := unix.Pwrite(fd, data[off:], int64(off))
		if err != nil {
			return fmt.Errorf("write arena: %w", err)
		}
		off += n
	}
	return nil
}

// Commit renames. Go's os.Rename refuses to replace a folder, so this is the system call.
func (f Fill) Commit() error { return unix.Rename(f.Staging(), f.Entry()) }

// Run does all of it.
func (f Fill) Run() error {
	if err := f.Stage(); err != nil {
		return err
	}
	return f.Commit()
}
