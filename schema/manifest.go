package schema

// Format is the only manifest format that this version reads and writes.
const Format = 1

// MaxDims is the largest number of dimensions that a tensor may have.
const MaxDims = 64

// Flags of a Tensor.
const (
	FlagRequiresGrad = 1 << 0
	FlagParameter    = 1 << 1
)

// Manifest is a decoded manifest. Its fields follow manifest.fbs, which explains them.
type Manifest struct {
	Format          uint32
	ID              string
	ClassName       string
	ModelName       string
	Loader          string
	Scope           string
	CreatedNS       int64   // Unix time, nanoseconds
	FillSeconds     float64 // what the uncached load took
	Arenas          []Arena
	Storages        []Storage
	StorageNames    []string
	Tensors         []Tensor
	Dims            []int64
	Dtypes          []string
	Devices         []string
	StructureNbytes uint64
	Key             []Fact
	Sources         []Source
	Listings        []Listing
	Distributions   []Distribution
	Modules         []Module
}

// Arena is one file under tensors/.
type Arena struct {
	Name   string
	Nbytes uint64
}

// Storage is a run of bytes in an arena; with Nbytes 0 it has no memory, and Offset and Arena are 0.
type Storage struct {
	Offset uint64 // bytes from the start of the arena
	Nbytes uint64
	Arena  uint32 // index in Manifest.Arenas
	Device uint32 // index in Manifest.Devices
}

// Tensor is a strided view of a storage.
type Tensor struct {
	Offset  uint64 // elements from the start of the storage
	Dims    uint32 // index in Manifest.Dims
	Storage uint32 // index in Manifest.Storages
	Dtype   uint16 // index in Manifest.Dtypes
	Ndim    uint8
	Flags   uint8
}

// Fact is one named value of the lookup key.
type Fact struct {
	Name  string
	Value string
}

// Source is a file that the load opened.
type Source struct {
	Path    string
	Nbytes  uint64
	MtimeNS int64
	CtimeNS int64
	Inode   uint64
}

// Listing is the digest of the names in a folder that the load looked into.
type Listing struct {
	Path   string
	Digest string
}

// Distribution is an installed distribution; an empty Version means that it was absent.
type Distribution struct {
	Name    string
	Version string
}

// Module is a module outside site-packages.
type Module struct {
	Name string
	Path string
}

// Shape returns the sizes and the strides (elements) of a tensor of a validated manifest. The slices are views.
func (m *Manifest) Shape(t Tensor) (sizes, strides []int64) {
	n := int(t.Ndim)
	dims := m.Dims[t.Dims : int(t.Dims)+2*n]
	return dims[:n], dims[n:]
}

// DataBytes is the sum of the sizes of the arenas.
func (m *Manifest) DataBytes() uint64 {
	var sum uint64
	for _, a := range m.Arenas {
		sum += a.Nbytes
	}
	return sum
}
