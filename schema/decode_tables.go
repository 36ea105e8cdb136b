package schema

import (
	"unsafe"

	"overmind-fs/schema/manifest"
)

// table decodes a vector of tables: at(i) positions the accessor on element i, read takes its fields.
func table[T any](d *decoder, field string, length int, read func(i int) T) []T {
	var zero T
	n := d.count(field, length, offsetSize, int(unsafe.Sizeof(zero)))
	if n == 0 {
		return nil
	}
	out := make([]T, n)
	for i := range out {
		if d.err != nil {
			return nil
		}
		out[i] = read(i)
	}
	return out
}

func (d *decoder) tables(t *manifest.Manifest, m *Manifest) {
	m.Arenas = table(d, "arenas", t.ArenasLength(), func(i int) Arena {
		var x manifest.Arena
		t.Arenas(&x, i)
		return Arena{Name: d.required("arenas.name", x.Name()), Nbytes: x.Nbytes()}
	})
	m.Key = table(d, "key", t.KeyLength(), func(i int) Fact {
		var x manifest.Fact
		t.Key(&x, i)
		return Fact{Name: d.required("key.name", x.Name()), Value: d.required("key.value", x.Value())}
	})
	m.Sources = table(d, "sources", t.SourcesLength(), func(i int) Source {
		var x manifest.Source
		t.Sources(&x, i)
		return Source{
			Path: d.required("sources.path", x.Path()), Nbytes: x.Nbytes(),
			MtimeNS: x.MtimeNs(), CtimeNS: x.CtimeNs(), Inode: x.Inode(),
		}
	})
	m.Listings = table(d, "listings", t.ListingsLength(), func(i int) Listing {
		var x manifest.Listing
		t.Listings(&x, i)
		return Listing{Path: d.required("listings.path", x.Path()), Digest: d.required("listings.digest", x.Digest())}
	})
	m.Distributions = table(d, "distributions", t.DistributionsLength(), func(i int) Distribution {
		var x manifest.Distribution
		t.Distributions(&x, i)
		return Distribution{
			Name:    d.required("distributions.name", x.Name()),
			Version: d.required("distributions.version", x.Version()),
		}
	})
	m.Modules = table(d, "modules", t.ModulesLength(), func(i int) Module {
		var x manifest.Module
		t.Modules(&x, i)
		return Module{Name: d.required("modules.name", x.Name()), Path: d.required("modules.path", x.Path())}
	})
}
