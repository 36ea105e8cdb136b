package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// orders are the values of --sort. Sizes and counts are listed largest first, times latest first.
var orders = map[string]func(a, b *entry) int{
	"id": func(a, b *entry) int { return cmp.Compare(a.id, b.id) },
	"class": func(a, b *entry) int {
		return cmp.Compare(lastName(a.manifest.ClassName), lastName(b.manifest.ClassName))
	},
	"model":  func(a, b *entry) int { return cmp.Compare(a.manifest.ModelName, b.manifest.ModelName) },
	"size":   func(a, b *entry) int { return cmp.Compare(b.bytes, a.bytes) },
	"age":    func(a, b *entry) int { return cmp.Compare(b.manifest.CreatedNS, a.manifest.CreatedNS) },
	"used":   func(a, b *entry) int { return b.lastUse.Compare(a.lastUse) },
	"hits":   func(a, b *entry) int { return cmp.Compare(b.hits, a.hits) },
	"leases": func(a, b *entry) int { return cmp.Compare(b.leases, a.leases) },
	"pinned": func(a, b *entry) int { return cmp.Compare(number(b.pinned), number(a.pinned)) },
	"took":   func(a, b *entry) int { return cmp.Compare(b.manifest.FillSeconds, a.manifest.FillSeconds) },
}

// sorted sorts in place.
func sorted(entries []*entry, order func(a, b *entry) int, reverse bool) []*entry {
	slices.SortStableFunc(entries, order)
	if reverse {
		slices.Reverse(entries)
	}
	return entries
}

func sortNames() string { return strings.Join(slices.Sorted(maps.Keys(orders)), ", ") }

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
