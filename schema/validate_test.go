package schema_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"overmind-fs/schema"
	"overmind-fs/schema/schematest"
)

func sampleFiles() schema.Files {
	return schema.Files{
		ID:              "a",
		Arenas:          map[string]uint64{"unet.safetensors": 4096, "vae.safetensors": 256},
		StructureNbytes: 1000,
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*schema.Manifest){
		"sample": func(*schema.Manifest) {},
		"unknown dtype": func(m *schema.Manifest) {
			m.Dtypes[0] = "float1024"
		},
		"scalar at the very end": func(m *schema.Manifest) {
			m.Tensors[0] = schema.Tensor{Offset: 23} // 96 bytes of float32
		},
		"empty tensor anywhere": func(m *schema.Manifest) {
			m.Tensors[3].Offset = 1 << 60
		},
		"no tensors": func(m *schema.Manifest) {
			m.Tensors, m.Dims = nil, nil
		},
	} {
		m := schematest.Sample("a")
		change(m)
		if err := m.Validate(sampleFiles()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	cases := map[string]struct {
		change func(*schema.Manifest, *schema.Files)
		want   string
	}{
		"format":        {func(m *schema.Manifest, _ *schema.Files) { m.Format = 2 }, "format 2"},
		"id":            {func(_ *schema.Manifest, f *schema.Files) { f.ID = "b" }, `id "a"`},
		"bad id":        {func(m *schema.Manifest, f *schema.Files) { m.ID, f.ID = "../x", "../x" }, "id"},
		"structure":     {func(m *schema.Manifest, _ *schema.Files) { m.StructureNbytes++ }, "structure_nbytes"},
		"seconds":       {func(m *schema.Manifest, _ *schema.Files) { m.FillSeconds = math.NaN() }, "fill_seconds"},
		"arena name":    {func(m *schema.Manifest, _ *schema.Files) { m.Arenas[0].Name = "../u.safetensors" }, "not allowed"},
		"arena suffix":  {func(m *schema.Manifest, _ *schema.Files) { m.Arenas[0].Name = "unet.bin" }, "not allowed"},
		"arena twice":   {func(m *schema.Manifest, _ *schema.Files) { m.Arenas[1] = m.Arenas[0] }, "twice"},
		"arena missing": {func(_ *schema.Manifest, f *schema.Files) { delete(f.Arenas, "vae.safetensors") }, "was not staged"},
		"arena extra":   {func(_ *schema.Manifest, f *schema.Files) { f.Arenas["x.safetensors"] = 1 }, "is not declared"},
		"arena size":    {func(m *schema.Manifest, _ *schema.Files) { m.Arenas[0].Nbytes++ }, "4097 bytes and has 4096"},
		"storages": {func(m *schema.Manifest, _ *schema.Files) {
			m.Storages, m.StorageNames = make([]schema.Storage, 2_000_000), make([]string, 2_000_000)
		}, "2000000 storages"},
		"names":            {func(m *schema.Manifest, _ *schema.Files) { m.StorageNames = m.StorageNames[1:] }, "storage names"},
		"device":           {func(m *schema.Manifest, _ *schema.Files) { m.Storages[0].Device = 2 }, "device 2"},
		"storage arena":    {func(m *schema.Manifest, _ *schema.Files) { m.Storages[0].Arena = 2 }, "arena 2"},
		"storage end":      {func(m *schema.Manifest, _ *schema.Files) { m.Storages[1].Nbytes++ }, "outside arena"},
		"storage start":    {func(m *schema.Manifest, _ *schema.Files) { m.Storages[1].Offset = 4097 }, "outside arena"},
		"storage wraps":    {func(m *schema.Manifest, _ *schema.Files) { m.Storages[1].Nbytes = math.MaxUint64 }, "outside arena"},
		"empty storage":    {func(m *schema.Manifest, _ *schema.Files) { m.Storages[3].Offset = 1 }, "is empty"},
		"tensor storage":   {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[0].Storage = 4 }, "storage 4 of 4"},
		"tensor dtype":     {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[0].Dtype = 2 }, "dtype 2 of 2"},
		"tensor dims":      {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[3].Dims = 11 }, "dims 11"},
		"tensor dims max":  {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[3].Dims = math.MaxUint32 }, "dims"},
		"tensor ndim":      {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[0].Ndim = 65 }, "65 dimensions"},
		"tensor size":      {func(m *schema.Manifest, _ *schema.Files) { m.Dims[0] = -1 }, "size -1"},
		"tensor stride":    {func(m *schema.Manifest, _ *schema.Files) { m.Dims[2] = -6 }, "stride -6"},
		"tensor extent":    {func(m *schema.Manifest, _ *schema.Files) { m.Dims[0] = 5 }, "elements end at 30"},
		"tensor offset":    {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[1].Offset = 2 }, "elements end at 25"},
		"offset wraps":     {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[1].Offset = math.MaxUint64 }, "overflows"},
		"product wraps":    {func(m *schema.Manifest, _ *schema.Files) { m.Dims[0], m.Dims[2] = 1<<33+1, 1<<31 }, "overflows"},
		"bytes wrap":       {func(m *schema.Manifest, _ *schema.Files) { m.Tensors[1].Offset = 1 << 62 }, "elements end"},
		"in empty storage": {func(m *schema.Manifest, _ *schema.Files) { m.Dims[10] = 1 }, "elements end at 1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m, f := schematest.Sample("a"), sampleFiles()
			c.change(m, &f)
			err := m.Validate(f)
			if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "SD-x_1.0-0123": true, "9": true, strings.Repeat("a", 200): true,
		"": false, ".": false, "..": false, ".a": false, "-a": false, "_a": false, "a/b": false, "a b": false,
		"ä": false, "a\n": false, strings.Repeat("a", 201): false,
	} {
		if schema.ValidID(id) != want {
			t.Errorf("ValidID(%q) is %v", id, !want)
		}
	}
	for name, want := range map[string]bool{
		"unet.safetensors": true, "_x.safetensors": true, "safetensors": false, ".safetensors": false,
		"a/b.safetensors": false, "unet.safetensors.x": false, strings.Repeat("a", 101) + ".safetensors": false,
	} {
		if schema.ValidArenaName(name) != want {
			t.Errorf("ValidArenaName(%q) is %v", name, !want)
		}
	}
}
