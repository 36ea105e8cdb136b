package schema

import (
	"errors"
	"fmt"

	"overmind-fs/schema/manifest"
)

// ErrMalformed is returned when a buffer is not a readable manifest: too short, another file identifier, an offset
// that leads outside the buffer, a missing required field, or counts that the buffer cannot hold.
var ErrMalformed = errors.New("malformed manifest")

// MaxBytes is the size of the largest manifest that is read, in bytes, and MaxStorages is how many storages it may have.
const (
	MaxBytes    = 64 << 20
	MaxStorages = 1 << 20
)

const (
	minBytes = 8 // root offset and file identifier

	// allocFactor bounds what Decode allocates to this many times the size of the buffer. Honest manifests stay
	// below 5: a table with two empty strings takes at least 24 bytes in the buffer and 40 in memory. Without a
	// bound, a vector of many offsets to one long string would allocate the square of the input.
	allocFactor = 16
	// allocFloor lets tiny manifests pass, in which the fixed part dominates.
	allocFloor = 4096
)

// Decode reads a manifest. The result holds copies, so the buffer may be unmapped afterwards. The error wraps
// ErrMalformed; a manifest that is readable but wrong is found by Validate.
func Decode(buf []byte) (m *Manifest, err error) {
	if len(buf) < minBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(buf))
	}
	if len(buf) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(buf), MaxBytes)
	}
	if !manifest.ManifestBufferHasIdentifier(buf) {
		return nil, fmt.Errorf("%w: file identifier %q, want %q", ErrMalformed, buf[4:8], manifest.ManifestIdentifier)
	}
	defer func() {
		// The generated accessors index the buffer with offsets from the buffer, and panic where those lie.
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("%w: %v", ErrMalformed, r)
		}
	}()
	d := &decoder{size: len(buf), budget: allocFloor + allocFactor*len(buf)}
	m = d.manifest(manifest.GetRootAsManifest(buf, 0))
	if d.err != nil {
		return nil, d.err
	}
	return m, nil
}

// decoder carries the allocation budget and the first error; after an error every read returns zero values.
type decoder struct {
	size   int
	budget int
	err    error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
	}
}

// spend takes n bytes from the allocation budget and says whether they may be allocated.
func (d *decoder) spend(n int) bool {
	if d.err != nil {
		return false
	}
	if n > d.budget {
		d.fail("needs more than %d times its size in memory", allocFactor)
		return false
	}
	d.budget -= n
	return true
}

// count checks the length of a vector whose elements take inBuffer bytes there and inMemory bytes here, and returns
// 0 when it cannot be.
func (d *decoder) count(field string, n, inBuffer, inMemory int) int {
	if d.err != nil || n == 0 {
		return 0
	}
	if n < 0 || n > d.size/inBuffer {
		d.fail("%s: %d elements in %d bytes", field, n, d.size)
		return 0
	}
	if !d.spend(n * inMemory) {
		return 0
	}
	return n
}

func (d *decoder) text(b []byte) string {
	if !d.spend(len(b)) {
		return ""
	}
	return string(b)
}

func (d *decoder) required(field string, b []byte) string {
	if b == nil {
		d.fail("%s is missing", field)
		return ""
	}
	return d.text(b)
}

// Sizes in the buffer (manifest.fbs) and, for the budget, in memory on 64-bit machines.
const (
	offsetSize  = 4
	structSize  = 24
	dimSize     = 8
	stringWords = 16
)

func (d *decoder) manifest(t *manifest.Manifest) *Manifest {
	m := &Manifest{
		Format:          t.Format(),
		ID:              d.required("id", t.Id()),
		ClassName:       d.text(t.ClassName()),
		ModelName:       d.text(t.ModelName()),
		Loader:          d.text(t.Loader()),
		Scope:           d.text(t.Scope()),
		CreatedNS:       t.CreatedNs(),
		FillSeconds:     t.FillSeconds(),
		StructureNbytes: t.StructureNbytes(),
	}
	d.storages(t, m)
	d.tensors(t, m)
	m.StorageNames = d.strings("storage_names", t.StorageNamesLength(), t.StorageNames)
	m.Dtypes = d.strings("dtypes", t.DtypesLength(), t.Dtypes)
	m.Devices = d.strings("devices", t.DevicesLength(), t.Devices)
	d.tables(t, m)
	return m
}

func (d *decoder) storages(t *manifest.Manifest, m *Manifest) {
	if n := d.count("storages", t.StoragesLength(), structSize, structSize); n > 0 {
		m.Storages = make([]Storage, n)
		var s manifest.Storage
		for i := range m.Storages {
			t.Storages(&s, i)
			m.Storages[i] = Storage{Offset: s.Offset(), Nbytes: s.Nbytes(), Arena: s.Arena(), Device: s.Device()}
		}
	}
}

func (d *decoder) tensors(t *manifest.Manifest, m *Manifest) {
	if n := d.count("tensors", t.TensorsLength(), structSize, structSize); n > 0 {
		m.Tensors = make([]Tensor, n)
		var x manifest.Tensor
		for i := range m.Tensors {
			t.Tensors(&x, i)
			m.Tensors[i] = Tensor{
				Offset: x.Offset(), Dims: x.Dims(), Storage: x.Storage(),
				Dtype: x.Dtype(), Ndim: x.Ndim(), Flags: x.Flags(),
			}
		}
	}
	if n := d.count("dims", t.DimsLength(), dimSize, dimSize); n > 0 {
		m.Dims = make([]int64, n)
		for i := range m.Dims {
			m.Dims[i] = t.Dims(i)
		}
	}
}

func (d *decoder) strings(field string, length int, at func(int) []byte) []string {
	n := d.count(field, length, offsetSize, stringWords)
	if n == 0 {
		return nil
	}
	out := make([]string, n)
	for i := range out {
		out[i] = d.text(at(i))
	}
	return out
}
