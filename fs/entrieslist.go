package fs

import (
	"encoding/json"

	"overmind-fs/fs/store"
)

// EntriesName is a file in the root of a mount, a JSON array of Listed: what the manifests and the attributes of all
// entries say, without opening each.
const EntriesName = "entries.json"

// Listed is one entry in EntriesName. Names and units are those of manifest.json and of the attributes.
type Listed struct {
	ID              string            `json:"id"`
	ClassName       string            `json:"class_name"`
	ModelName       string            `json:"model_name"`
	Loader          string            `json:"loader"`
	CreatedNS       int64             `json:"created_ns"`
	FillSeconds     float64           `json:"fill_seconds"`
	UID             uint32            `json:"uid"`
	Bytes           uint64            `json:"bytes"`
	Shared          uint64            `json:"shared"`
	StructureNbytes uint64            `json:"structure_nbytes"`
	Arenas          []store.ArenaSize `json:"arenas"`
	Pinned          bool              `json:"pinned"`
	Hits            uint64            `json:"hits"`
	Leases          int               `json:"leases"`
	LeasePIDs       []int             `json:"lease_pids"`
	LastUse         int64             `json:"last_use"`
}

// entriesJSON encodes one entry at a time: the encoder keeps the largest buffer that it ever needed.
func (t *tree) entriesJSON() ([]byte, error) {
	text := []byte("[")
	for i, x := range t.store.Summaries() {
		one, err := json.Marshal(Listed{
			ID: x.ID, ClassName: x.ClassName, ModelName: x.ModelName, Loader: x.Loader, CreatedNS: x.CreatedNS,
			FillSeconds: x.FillSeconds, UID: x.Owner.UID, Bytes: x.Bytes, Shared: x.Shared, StructureNbytes: x.StructureBytes,
			Arenas: append([]store.ArenaSize{}, x.Arenas...), // never null
			Pinned: x.Pinned, Hits: x.Hits, Leases: x.Leases,
			LeasePIDs: append([]int{}, x.LeasePIDs...), // never null
			LastUse:   x.LastUse.Unix(),
		})
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, one...)
	}
	return append(text, "]\n"...), nil
}
