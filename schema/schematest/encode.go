// Package schematest builds manifests for tests. The daemon only reads them.
package schematest

import (
	flatbuffers "github.com/google/flatbuffers/go"

	"overmind-fs/schema"
	"overmind-fs/schema/manifest"
)

// Sample returns a small valid manifest with something in every field: two arenas, a storage shared by two tensors, an
// empty storage, and a transposed tensor.
func Sample(id string) *schema.Manifest {
	return &schema.Manifest{
		Format: schema.Format, ID: id,
		ClassName: "diffusers.StableDiffusionPipeline", ModelName: "sd-turbo",
		Loader: "diffusers.DiffusionPipeline.from_pretrained", Scope: "from_pretrained:/models/sd",
		CreatedNS: 1_700_000_000_000_000_000, FillSeconds: 12.5,
		Arenas: []schema.Arena{{Name: "unet.safetensors", Nbytes: 4096}, {Name: "vae.safetensors", Nbytes: 256}},
		Storages: []schema.Storage{
			{Offset: 64, Nbytes: 96},
			{Offset: 160, Nbytes: 3936},
			{Offset: 8, Nbytes: 248, Arena: 1},
			{},
		},
		StorageNames: []string{"conv_in.weight", "a/b\nc", "", "empty"},
		Tensors: []schema.Tensor{
			{Ndim: 2, Flags: schema.FlagRequiresGrad | schema.FlagParameter},
			{Ndim: 2, Dims: 4, Offset: 1},
			{Ndim: 1, Dims: 8, Storage: 2, Dtype: 1},
			{Ndim: 1, Dims: 10, Storage: 3},
		},
		Dims:            []int64{4, 6, 6, 1, 5, 4, 1, 6, 124, 1, 0, 1},
		Dtypes:          []string{"float32", "bfloat16"},
		Devices:         []string{"cpu", "cuda:0"},
		StructureNbytes: 1000,
		Key:             []schema.Fact{{Name: "loader", Value: "from_pretrained"}, {Name: "python", Value: "3.13"}},
		Sources: []schema.Source{
			{Path: "/models/sd/unet.bin", Nbytes: 1 << 33, MtimeNS: 1, CtimeNS: 2, Inode: 3},
		},
		Listings:      []schema.Listing{{Path: "/models/sd", Digest: "0123"}},
		Distributions: []schema.Distribution{{Name: "torch", Version: "2.9.1"}, {Name: "xformers"}},
		Modules:       []schema.Module{{Name: "my_model", Path: "/home/me/my_model.py"}},
	}
}

// Encode writes a manifest, also an invalid one.
func Encode(m *schema.Manifest) []byte {
	b := flatbuffers.NewBuilder(1024)
	arenas := tables(b, manifest.ManifestStartArenasVector, m.Arenas, func(a schema.Arena) flatbuffers.UOffsetT {
		name := b.CreateString(a.Name)
		manifest.ArenaStart(b)
		manifest.ArenaAddName(b, name)
		manifest.ArenaAddNbytes(b, a.Nbytes)
		return manifest.ArenaEnd(b)
	})
	key := tables(b, manifest.ManifestStartKeyVector, m.Key, func(f schema.Fact) flatbuffers.UOffsetT {
		name, value := b.CreateString(f.Name), b.CreateString(f.Value)
		manifest.FactStart(b)
		manifest.FactAddName(b, name)
		manifest.FactAddValue(b, value)
		return manifest.FactEnd(b)
	})
	sources := tables(b, manifest.ManifestStartSourcesVector, m.Sources, func(s schema.Source) flatbuffers.UOffsetT {
		path := b.CreateString(s.Path)
		manifest.SourceStart(b)
		manifest.SourceAddPath(b, path)
		manifest.SourceAddNbytes(b, s.Nbytes)
		manifest.SourceAddMtimeNs(b, s.MtimeNS)
		manifest.SourceAddCtimeNs(b, s.CtimeNS)
		manifest.SourceAddInode(b, s.Inode)
		return manifest.SourceEnd(b)
	})
	listings := tables(b, manifest.ManifestStartListingsVector, m.Listings, func(l schema.Listing) flatbuffers.UOffsetT {
		path, digest := b.CreateString(l.Path), b.CreateString(l.Digest)
		manifest.ListingStart(b)
		manifest.ListingAddPath(b, path)
		manifest.ListingAddDigest(b, digest)
		return manifest.ListingEnd(b)
	})
	dists := tables(b, manifest.ManifestStartDistributionsVector, m.Distributions, func(d schema.Distribution) flatbuffers.UOffsetT {
		name, version := b.CreateString(d.Name), b.CreateString(d.Version)
		manifest.DistributionStart(b)
		manifest.DistributionAddName(b, name)
		manifest.DistributionAddVersion(b, version)
		return manifest.DistributionEnd(b)
	})
	modules := tables(b, manifest.ManifestStartModulesVector, m.Modules, func(x schema.Module) flatbuffers.UOffsetT {
		name, path := b.CreateString(x.Name), b.CreateString(x.Path)
		manifest.ModuleStart(b)
		manifest.ModuleAddName(b, name)
		manifest.ModuleAddPath(b, path)
		return manifest.ModuleEnd(b)
	})
	text := func(s string) flatbuffers.UOffsetT { return b.CreateString(s) }
	names := tables(b, manifest.ManifestStartStorageNamesVector, m.StorageNames, text)
	dtypes := tables(b, manifest.ManifestStartDtypesVector, m.Dtypes, text)
	devices := tables(b, manifest.ManifestStartDevicesVector, m.Devices, text)
	storages := structs(b, manifest.ManifestStartStoragesVector, m.Storages, func(s schema.Storage) {
		manifest.CreateStorage(b, s.Offset, s.Nbytes, s.Arena, s.Device)
	})
	tensors := structs(b, manifest.ManifestStartTensorsVector, m.Tensors, func(t schema.Tensor) {
		manifest.CreateTensor(b, t.Offset, t.Dims, t.Storage, t.Dtype, t.Ndim, t.Flags, 0)
	})
	dims := structs(b, manifest.ManifestStartDimsVector, m.Dims, b.PrependInt64)
	id, class, model := text(m.ID), text(m.ClassName), text(m.ModelName)
	loader, scope := text(m.Loader), text(m.Scope)

	manifest.ManifestStart(b)
	manifest.ManifestAddFormat(b, m.Format)
	manifest.ManifestAddId(b, id)
	manifest.ManifestAddClassName(b, class)
	manifest.ManifestAddModelName(b, model)
	manifest.ManifestAddLoader(b, loader)
	manifest.ManifestAddScope(b, scope)
	manifest.ManifestAddCreatedNs(b, m.CreatedNS)
	manifest.ManifestAddFillSeconds(b, m.FillSeconds)
	manifest.ManifestAddArenas(b, arenas)
	manifest.ManifestAddStorages(b, storages)
	manifest.ManifestAddStorageNames(b, names)
	manifest.ManifestAddTensors(b, tensors)
	manifest.ManifestAddDims(b, dims)
	manifest.ManifestAddDtypes(b, dtypes)
	manifest.ManifestAddDevices(b, devices)
	manifest.ManifestAddStructureNbytes(b, m.StructureNbytes)
	manifest.ManifestAddKey(b, key)
	manifest.ManifestAddSources(b, sources)
	manifest.ManifestAddListings(b, listings)
	manifest.ManifestAddDistributions(b, dists)
	manifest.ManifestAddModules(b, modules)
	manifest.FinishManifestBuffer(b, manifest.ManifestEnd(b))
	return b.FinishedBytes()
}

// tables writes a vector of what has to be written before the vector: tables and strings.
func tables[T any](b *flatbuffers.Builder, start func(*flatbuffers.Builder, int) flatbuffers.UOffsetT, items []T,
	write func(T) flatbuffers.UOffsetT,
) flatbuffers.UOffsetT {
	offsets := make([]flatbuffers.UOffsetT, len(items))
	for i, item := range items {
		offsets[i] = write(item)
	}
	start(b, len(items))
	for i := len(offsets) - 1; i >= 0; i-- {
		b.PrependUOffsetT(offsets[i])
	}
	return b.EndVector(len(items))
}

// structs writes a vector of what lies in the vector itself.
func structs[T any](b *flatbuffers.Builder, start func(*flatbuffers.Builder, int) flatbuffers.UOffsetT, items []T,
	write func(T),
) flatbuffers.UOffsetT {
	start(b, len(items))
	for i := len(items) - 1; i >= 0; i-- {
		write(items[i])
	}
	return b.EndVector(len(items))
}
