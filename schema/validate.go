package schema

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrInvalid is returned when a readable manifest contradicts itself or the files that it describes.
var ErrInvalid = errors.New("invalid manifest")

// Files are the facts about the staged files that a manifest is checked against.
type Files struct {
	ID              string            // name of the folder
	Arenas          map[string]uint64 // file name under tensors/ -> bytes
	StructureNbytes uint64            // size of structure.pkl
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Validate checks everything that a reader will rely on: the format and the id, that the arenas are exactly the staged
// files with their sizes, and that every storage lies in its arena and every tensor in its storage. The error wraps
// ErrInvalid and names the first culprit.
func (m *Manifest) Validate(files Files) error {
	if m.Format != Format {
		return invalid("format %d, want %d", m.Format, Format)
	}
	if !ValidID(m.ID) || m.ID != files.ID {
		return invalid("id %q in folder %q", m.ID, files.ID)
	}
	if m.StructureNbytes != files.StructureNbytes {
		return invalid("structure_nbytes is %d, structure.pkl has %d bytes", m.StructureNbytes, files.StructureNbytes)
	}
	if math.IsNaN(m.FillSeconds) || math.IsInf(m.FillSeconds, 0) {
		return invalid("fill_seconds is %v", m.FillSeconds)
	}
	if err := m.validateArenas(files.Arenas); err != nil {
		return err
	}
	if err := m.validateStorages(); err != nil {
		return err
	}
	for i := range m.Tensors {
		if err := m.validateTensor(m.Tensors[i]); err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return nil
}

func (m *Manifest) validateArenas(staged map[string]uint64) error {
	seen := make(map[string]bool, len(staged))
	for _, a := range m.Arenas {
		if !ValidArenaName(a.Name) {
			return invalid("arena name %q is not allowed", a.Name)
		}
		if seen[a.Name] {
			return invalid("arena %s is declared twice", a.Name)
		}
		seen[a.Name] = true
		size, ok := staged[a.Name]
		if !ok {
			return invalid("arena %s was not staged", a.Name)
		}
		if size != a.Nbytes {
			return invalid("arena %s is declared with %d bytes and has %d", a.Name, a.Nbytes, size)
		}
	}
	for name := range staged {
		if !seen[name] {
			return invalid("staged arena %s is not declared", name)
		}
	}
	return nil
}

func (m *Manifest) validateStorages() error {
	if len(m.Storages) > MaxStorages {
		return invalid("%d storages, at most %d", len(m.Storages), MaxStorages)
	}
	if len(m.StorageNames) != len(m.Storages) {
		return invalid("%d storages and %d storage names", len(m.Storages), len(m.StorageNames))
	}
	for i, s := range m.Storages {
		if uint64(s.Device) >= uint64(len(m.Devices)) {
			return invalid("storage %d: device %d of %d", i, s.Device, len(m.Devices))
		}
		if s.Nbytes == 0 {
			if s.Offset != 0 || s.Arena != 0 {
				return invalid("storage %d is empty and has offset %d, arena %d", i, s.Offset, s.Arena)
			}
			continue
		}
		if uint64(s.Arena) >= uint64(len(m.Arenas)) {
			return invalid("storage %d: arena %d of %d", i, s.Arena, len(m.Arenas))
		}
		if size := m.Arenas[s.Arena].Nbytes; s.Offset > size || s.Nbytes > size-s.Offset {
			return invalid("storage %d: bytes %d+%d are outside arena %s of %d bytes",
				i, s.Offset, s.Nbytes, m.Arenas[s.Arena].Name, size)
		}
	}
	return nil
}

func (m *Manifest) validateTensor(t Tensor) error {
	if uint64(t.Storage) >= uint64(len(m.Storages)) {
		return invalid("storage %d of %d", t.Storage, len(m.Storages))
	}
	if int(t.Dtype) >= len(m.Dtypes) {
		return invalid("dtype %d of %d", t.Dtype, len(m.Dtypes))
	}
	if t.Ndim > MaxDims {
		return invalid("%d dimensions, at most %d", t.Ndim, MaxDims)
	}
	if uint64(t.Dims)+2*uint64(t.Ndim) > uint64(len(m.Dims)) {
		return invalid("dims %d+2*%d of %d", t.Dims, t.Ndim, len(m.Dims))
	}
	end, err := m.extent(t)
	if err != nil {
		return err
	}
	// A dtype that this version does not know is held to one byte an element, the least that torch has.
	size := max(ItemSize(m.Dtypes[t.Dtype]), 1)
	hi, nbytes := bits.Mul64(end, size)
	if limit := m.Storages[t.Storage].Nbytes; hi != 0 || nbytes > limit {
		return invalid("elements end at %d of %d bytes each, its storage %d has %d bytes", end, size, t.Storage, limit)
	}
	return nil
}

// extent returns the end, in elements from the start of the storage, of what the tensor can reach.
func (m *Manifest) extent(t Tensor) (uint64, error) {
	sizes, strides := m.Shape(t)
	end, overflow := t.Offset, false
	empty := false
	for i := range sizes {
		if sizes[i] < 0 || strides[i] < 0 {
			return 0, invalid("size %d, stride %d", sizes[i], strides[i])
		}
		empty = empty || sizes[i] == 0
	}
	if empty {
		return 0, nil // reaches nothing, wherever it starts
	}
	for i := range sizes {
		hi, step := bits.Mul64(uint64(sizes[i]-1), uint64(strides[i]))
		sum, carry := bits.Add64(end, step, 0)
		end, overflow = sum, overflow || hi != 0 || carry != 0
	}
	end, carry := bits.Add64(end, 1, 0)
	if overflow || carry != 0 {
		return 0, invalid("its extent overflows")
	}
	return end, nil
}
