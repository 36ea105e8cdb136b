package main

import (
	"cmp"
	"regexp"
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

// tensorsBySize lists the tensors of a validated manifest, largest first. Those that are not in its table, since they are
// more than a view of a storage, are listed as that storage.
func tensorsBySize(m *schema.Manifest) []tensorLine {
	var lines []tensorLine
	seen := make([]bool, len(m.Storages))
	for _, t := range m.Tensors {
		seen[t.Storage] = true
		sizes, _ := m.Shape(t)
		line := storageLine(m, int(t.Storage))
		line.dtype, line.nbytes = m.Dtypes[t.Dtype], schema.ItemSize(m.Dtypes[t.Dtype])
		words := make([]string, len(sizes))
		for k, n := range sizes {
			words[k] = strconv.FormatInt(n, 10)
			line.nbytes *= uint64(n)
		}
		line.shape = "[" + strings.Join(words, ", ") + "]"
		lines = append(lines, line)
	}
	for i, s := range m.Storages {
		if !seen[i] && s.Nbytes > 0 {
			lines = append(lines, storageLine(m, i))
		}
	}
	slices.SortStableFunc(lines, func(a, b tensorLine) int { return cmp.Compare(b.nbytes, a.nbytes) })
	return lines
}

func storageLine(m *schema.Manifest, i int) tensorLine {
	s := m.Storages[i]
	line := tensorLine{name: m.StorageNames[i], dtype: "storage", nbytes: s.Nbytes}
	if line.name == "" {
		line.name = "storage " + strconv.Itoa(i)
	}
	if s.Nbytes > 0 {
		line.component = componentName(m.Arenas[s.Arena].Name)
	}
	return line
}

// arenaSuffix is what an arena's name has behind that of its component; a large component has several arenas.
var arenaSuffix = regexp.MustCompile(`(-\d{5}-of-\d{5})?\.safetensors$`)

// componentName is the component whose arena, or a part of it, has that name.
func componentName(arena string) string { return arenaSuffix.ReplaceAllString(arena, "") }

type component struct {
	name  string
	bytes uint64
}

// components are what the arenas of an entry hold, in their order. The parts of one follow each other.
func components(m *schema.Manifest) []component {
	var found []component
	for _, a := range m.Arenas {
		name := componentName(a.Name)
		if last := len(found) - 1; last >= 0 && found[last].name == name {
			found[last].bytes += a.Nbytes
			continue
		}
		found = append(found, component{name, a.Nbytes})
	}
	return found
}
