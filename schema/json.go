package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrTooLong is returned when manifest.json would be out of all proportion: tensors may share their dims, so that a
// hostile manifest of megabytes could become gigabytes of text.
var ErrTooLong = errors.New("manifest is too long for JSON")

// maxJSONDims bounds the sizes and strides that are written out. A large pipeline has some thousand.
const maxJSONDims = 10_000_000

// The documents below are manifest.json: the same facts as the manifest, for people and for jq.

type document struct {
	Format          uint32            `json:"format"`
	ID              string            `json:"id"`
	ClassName       string            `json:"class_name"`
	ModelName       string            `json:"model_name"`
	Loader          string            `json:"loader"`
	Scope           string            `json:"scope"`
	Created         string            `json:"created"`
	CreatedNS       int64             `json:"created_ns"`
	FillSeconds     float64           `json:"fill_seconds"`
	DataBytes       uint64            `json:"data_nbytes"`
	StructureNbytes uint64            `json:"structure_nbytes"`
	Key             []factDoc         `json:"key"`
	Sources         []sourceDoc       `json:"sources"`
	Listings        []listingDoc      `json:"listings"`
	Distributions   map[string]string `json:"distributions"`
	Modules         map[string]string `json:"modules"`
	Devices         []string          `json:"devices"`
	Arenas          []arenaDoc        `json:"arenas"`
	Storages        []storageDoc      `json:"storages"`
}

type factDoc struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type sourceDoc struct {
	Path    string `json:"path"`
	Nbytes  uint64 `json:"nbytes"`
	MtimeNS int64  `json:"mtime_ns"`
	CtimeNS int64  `json:"ctime_ns"`
	Inode   uint64 `json:"inode"`
}

type listingDoc struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

type arenaDoc struct {
	Name   string `json:"name"`
	Nbytes uint64 `json:"nbytes"`
}

type storageDoc struct {
	Name    string      `json:"name"`
	Arena   string      `json:"arena,omitempty"`
	Offset  uint64      `json:"offset"`
	Nbytes  uint64      `json:"nbytes"`
	Device  string      `json:"device"`
	Tensors []tensorDoc `json:"tensors"`
}

type tensorDoc struct {
	Index        int     `json:"index"`
	Dtype        string  `json:"dtype"`
	Shape        []int64 `json:"shape"`
	Stride       []int64 `json:"stride"`
	Offset       uint64  `json:"offset"`
	RequiresGrad bool    `json:"requires_grad,omitempty"`
	Parameter    bool    `json:"parameter,omitempty"`
}

// JSON renders a validated manifest as an indented JSON object with a final newline. Conversions between the
// element types below are checked by the compiler, so a new field cannot be forgotten there. The error wraps ErrTooLong.
func (m *Manifest) JSON() ([]byte, error) {
	dims := 0
	for _, t := range m.Tensors {
		dims += 2 * int(t.Ndim)
	}
	if dims > maxJSONDims {
		return nil, fmt.Errorf("%w: %d sizes and strides", ErrTooLong, dims)
	}
	doc := document{
		Format: m.Format, ID: m.ID, ClassName: m.ClassName, ModelName: m.ModelName, Loader: m.Loader, Scope: m.Scope,
		Created:   time.Unix(0, m.CreatedNS).UTC().Format(time.RFC3339Nano),
		CreatedNS: m.CreatedNS, FillSeconds: m.FillSeconds,
		DataBytes: m.DataBytes(), StructureNbytes: m.StructureNbytes,
		Key: []factDoc{}, Sources: []sourceDoc{}, Listings: []listingDoc{}, Arenas: []arenaDoc{},
		Distributions: map[string]string{}, Modules: map[string]string{},
		Devices:  append([]string{}, m.Devices...),
		Storages: m.storageDocs(),
	}
	for _, f := range m.Key {
		doc.Key = append(doc.Key, factDoc(f))
	}
	for _, s := range m.Sources {
		doc.Sources = append(doc.Sources, sourceDoc(s))
	}
	for _, l := range m.Listings {
		doc.Listings = append(doc.Listings, listingDoc(l))
	}
	for _, a := range m.Arenas {
		doc.Arenas = append(doc.Arenas, arenaDoc(a))
	}
	for _, d := range m.Distributions {
		doc.Distributions[d.Name] = d.Version
	}
	for _, x := range m.Modules {
		doc.Modules[x.Name] = x.Path
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (m *Manifest) storageDocs() []storageDoc {
	docs := make([]storageDoc, len(m.Storages))
	for i, s := range m.Storages {
		docs[i] = storageDoc{
			Name: m.StorageNames[i], Offset: s.Offset, Nbytes: s.Nbytes, Device: m.Devices[s.Device],
			Tensors: []tensorDoc{},
		}
		if s.Nbytes > 0 {
			docs[i].Arena = m.Arenas[s.Arena].Name
		}
	}
	for i, t := range m.Tensors {
		sizes, strides := m.Shape(t)
		d := &docs[t.Storage]
		d.Tensors = append(d.Tensors, tensorDoc{
			Index: i, Dtype: m.Dtypes[t.Dtype], Shape: sizes, Stride: strides, Offset: t.Offset,
			RequiresGrad: t.Flags&FlagRequiresGrad != 0, Parameter: t.Flags&FlagParameter != 0,
		})
	}
	return docs
}
