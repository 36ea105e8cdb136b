package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	overmindfs "overmind-fs/fs"
	"overmind-fs/schema"
)

// listedEntries reads all entries from the one file of a mount that tells of them. Of the manifests it gives what that
// file has.
func listedEntries(root string) ([]*entry, error) {
	path := filepath.Join(root, overmindfs.EntriesName)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []overmindfs.Listed
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	entries := make([]*entry, 0, len(list))
	for _, x := range list {
		m := &schema.Manifest{
			ID: x.ID, ClassName: x.ClassName, ModelName: x.ModelName, Loader: x.Loader, CreatedNS: x.CreatedNS,
			FillSeconds: x.FillSeconds, StructureNbytes: x.StructureNbytes,
		}
		for _, a := range x.Arenas {
			m.Arenas = append(m.Arenas, schema.Arena{Name: a.Name, Nbytes: a.Bytes})
		}
		e := &entry{id: x.ID, path: filepath.Join(pipelinesOf(root), x.ID), uid: x.UID, manifest: m, live: true}
		e.bytes, e.pinned, e.hits, e.leases = x.Bytes, x.Pinned, x.Hits, x.Leases
		e.shared = x.Shared
		e.leasePIDs, e.lastUse = x.LeasePIDs, time.Unix(x.LastUse, 0)
		entries = append(entries, e)
	}
	return entries, nil
}
