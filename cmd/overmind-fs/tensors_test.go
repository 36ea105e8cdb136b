package main

import (
	"slices"
	"testing"

	"overmind-fs/schema"
)

func TestComponentsOfSeveralArenas(t *testing.T) {
	m := &schema.Manifest{Arenas: []schema.Arena{
		{Name: "unet-00001-of-00002.safetensors", Nbytes: 5},
		{Name: "unet-00002-of-00002.safetensors", Nbytes: 7},
		{Name: "vae.safetensors", Nbytes: 3},
		{Name: "odd-1-of-2.safetensors", Nbytes: 1},
	}}
	want := []component{{"unet", 12}, {"vae", 3}, {"odd-1-of-2", 1}}
	if got := components(m); !slices.Equal(got, want) {
		t.Errorf("components = %v, want %v", got, want)
	}
}
