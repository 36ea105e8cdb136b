package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"overmind-fs/schema"
)

// topTensors is how many tensors show lists by default.
const topTensors = 10

// tensorLine is what show says about a tensor.
type tensorLine struct {
	name, component, dtype, shape string
	nbytes                        uint64 // of its elements
}

// tensorsBySize lists the tensors of a validated manifest, largest first.
func tensorsBySize(m *schema.Manifest) []tensorLine {
	lines := make([]tensorLine, len(m.Tensors))
	for i, t := range m.Tensors {
		storage := m.Storages[t.Storage]
		sizes, _ := m.Shape(t)
		line := tensorLine{name: m.StorageNames[t.Storage], dtype: m.Dtypes[t.Dtype], nbytes: schema.ItemSize(m.Dtypes[t.Dtype])}
		if line.name == "" {
			line.name = "storage " + strconv.Itoa(int(t.Storage))
		}
		if storage.Nbytes > 0 {
			line.component = componentName(m.Arenas[storage.Arena].Name)
		}
		words := make([]string, len(sizes))
		for k, n := range sizes {
			words[k] = strconv.FormatInt(n, 10)
			line.nbytes *= uint64(n)
		}
		line.shape = "[" + strings.Join(words, ", ") + "]"
		lines[i] = line
	}
	slices.SortStableFunc(lines, func(a, b tensorLine) int { return cmp.Compare(b.nbytes, a.nbytes) })
	return lines
}

// componentName is the name of an arena without its extension.
func componentName(arena string) string { return strings.TrimSuffix(arena, ".safetensors") }
