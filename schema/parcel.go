package schema

import (
	"encoding/binary"
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"

	"overmind-fs/schema/control"
)

// Parcel is one message of a takeover: an entry, a file, or a mark between them. Only the field of its kind is set.
type Parcel struct {
	Kind  control.ParcelKind
	Entry EntryRecord
	File  FileRecord
	// Message says why a takeover failed.
	Message string
}

// EntryRecord is what another daemon has to know of an entry besides its files. Times are Unix time in nanoseconds.
type EntryRecord struct {
	Serial     uint64
	ID         string
	UID, GID   uint32
	PID        int32
	Staging    bool
	HasTensors bool // of a staging
	CreatedNS  int64
	LastUseNS  int64
	Hits       uint64
	Pinned     bool
}

// FileRecord is what has to be known of a file of an entry besides its memfd. Entry is the serial number of the entry.
type FileRecord struct {
	Entry  uint64
	Serial uint64
	Name   string
	Arena  bool
	Huge   bool
}

// DecodeParcel reads a message. The error is one of DecodeRequest's; names are valid.
func DecodeParcel(message []byte) (p Parcel, err error) {
	err = decodeFrame(message, func() error {
		t := control.GetSizePrefixedRootAsParcel(message, 0)
		if v := t.Version(); v != ControlVersion {
			return fmt.Errorf("%w: %d, this daemon has %d", ErrVersion, v, ControlVersion)
		}
		p.Kind = t.Kind()
		switch p.Kind {
		case control.ParcelKindFrozen, control.ParcelKindEnd:
			return nil
		case control.ParcelKindFailed:
			p.Message = string(t.Message())
			return nil
		case control.ParcelKindEntry:
			return p.Entry.decode(t.Entry(nil))
		case control.ParcelKindFile:
			return p.File.decode(t.File(nil))
		}
		return fmt.Errorf("%w: parcel %d", ErrRequest, p.Kind)
	})
	if err != nil {
		return Parcel{}, err
	}
	return p, nil
}

func (r *EntryRecord) decode(t *control.Entry) error {
	if t == nil {
		return fmt.Errorf("%w: no entry", ErrRequest)
	}
	*r = EntryRecord{
		Serial: t.Serial(), ID: string(t.Id()), UID: t.Uid(), GID: t.Gid(), PID: t.Pid(),
		Staging: t.Staging(), HasTensors: t.Tensors(),
		CreatedNS: t.CreatedNs(), LastUseNS: t.LastUseNs(), Hits: t.Hits(), Pinned: t.Pinned(),
	}
	if !ValidID(r.ID) {
		return fmt.Errorf("%w: id %q", ErrRequest, r.ID)
	}
	return nil
}

func (r *FileRecord) decode(t *control.File) error {
	if t == nil {
		return fmt.Errorf("%w: no file", ErrRequest)
	}
	*r = FileRecord{Entry: t.Entry(), Serial: t.Serial(), Name: string(t.Name()), Arena: t.Arena(), Huge: t.Huge()}
	if valid := len(r.Name) > 0 && len(r.Name) <= 255; !valid || r.Arena && !ValidArenaName(r.Name) {
		return fmt.Errorf("%w: file name %q", ErrRequest, r.Name)
	}
	return nil
}

// Encode makes the message.
func (p Parcel) Encode() []byte {
	b := flatbuffers.NewBuilder(512)
	var entry, file, message flatbuffers.UOffsetT
	switch p.Kind {
	case control.ParcelKindEntry:
		entry = p.Entry.encode(b)
	case control.ParcelKindFile:
		file = p.File.encode(b)
	case control.ParcelKindFailed:
		message = b.CreateString(p.Message[:min(len(p.Message), maxReplyText)])
	}
	control.ParcelStart(b)
	control.ParcelAddVersion(b, ControlVersion)
	control.ParcelAddKind(b, p.Kind)
	if entry != 0 {
		control.ParcelAddEntry(b, entry)
	}
	if file != 0 {
		control.ParcelAddFile(b, file)
	}
	if message != 0 {
		control.ParcelAddMessage(b, message)
	}
	b.FinishSizePrefixedWithFileIdentifier(control.ParcelEnd(b), []byte(control.RequestIdentifier))
	return b.FinishedBytes()
}

func (r EntryRecord) encode(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	id := b.CreateString(r.ID)
	control.EntryStart(b)
	control.EntryAddSerial(b, r.Serial)
	control.EntryAddId(b, id)
	control.EntryAddUid(b, r.UID)
	control.EntryAddGid(b, r.GID)
	control.EntryAddPid(b, r.PID)
	control.EntryAddStaging(b, r.Staging)
	control.EntryAddTensors(b, r.HasTensors)
	control.EntryAddCreatedNs(b, r.CreatedNS)
	control.EntryAddLastUseNs(b, r.LastUseNS)
	control.EntryAddHits(b, r.Hits)
	control.EntryAddPinned(b, r.Pinned)
	return control.EntryEnd(b)
}

func (r FileRecord) encode(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	name := b.CreateString(r.Name)
	control.FileStart(b)
	control.FileAddEntry(b, r.Entry)
	control.FileAddSerial(b, r.Serial)
	control.FileAddName(b, name)
	control.FileAddArena(b, r.Arena)
	control.FileAddHuge(b, r.Huge)
	return control.FileEnd(b)
}

// DecodeParcels reads messages that lie one behind the other.
func DecodeParcels(buf []byte) ([]Parcel, error) {
	var out []Parcel
	for len(buf) > 0 {
		if len(buf) < prefixSize {
			return nil, fmt.Errorf("%w: %d bytes at the end", ErrFrame, len(buf))
		}
		n := uint64(binary.LittleEndian.Uint32(buf)) + prefixSize
		if n > uint64(len(buf)) {
			return nil, fmt.Errorf("%w: %d bytes of %d", ErrFrame, len(buf), n)
		}
		p, err := DecodeParcel(buf[:n])
		if err != nil {
			return nil, err
		}
		out, buf = append(out, p), buf[n:]
	}
	return out, nil
}
