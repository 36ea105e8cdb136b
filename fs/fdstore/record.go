package fdstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

const (
	prefix = "overmind-"
	// stateSize are the bytes at the start of a record: hits, last use, pin, 8 bytes each.
	stateSize = 24
	// maxRecord bounds what is read, in bytes: more than an entry of a thousand files has.
	maxRecord = 1 << 20
)

// errRecord is returned when a record cannot be read.
var errRecord = errors.New("malformed record")

func recordName(entry uint64) string      { return fmt.Sprintf("%s%d", prefix, entry) }
func fileName(f schema.FileRecord) string { return fmt.Sprintf("%s%d-%d", prefix, f.Entry, f.Serial) }

func encodeState(r schema.EntryRecord) []byte {
	var pinned uint64
	if r.Pinned {
		pinned = 1
	}
	b := make([]byte, 0, stateSize)
	b = binary.LittleEndian.AppendUint64(b, r.Hits)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.LastUseNS))
	return binary.LittleEndian.AppendUint64(b, pinned)
}

// newRecord makes the memfd of a record.
func newRecord(r schema.EntryRecord, files []store.Passed) (int, error) {
	b := append(encodeState(r), schema.Parcel{Kind: control.ParcelKindEntry, Entry: r}.Encode()...)
	for _, f := range files {
		b = append(b, schema.Parcel{Kind: control.ParcelKindFile, File: f.FileRecord}.Encode()...)
	}
	if len(b) > maxRecord {
		return -1, fmt.Errorf("a record of %d bytes", len(b))
	}
	fd, err := unix.MemfdCreate("overmind-record", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("overmind-record", unix.MFD_CLOEXEC) // before Linux 6.3
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n != len(b) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("write record: %d of %d bytes, %w", n, len(b), err)
	}
	return fd, nil
}

// readRecord reads what newRecord has written, with the last update.
func readRecord(fd int) (schema.EntryRecord, []schema.FileRecord, error) {
	fail := func(format string, args ...any) (schema.EntryRecord, []schema.FileRecord, error) {
		return schema.EntryRecord{}, nil, fmt.Errorf("%w: %w", errRecord, fmt.Errorf(format, args...))
	}
	b := make([]byte, maxRecord+1)
	n, err := unix.Pread(fd, b, 0)
	if err != nil || n <= stateSize || n > maxRecord {
		return fail("%d bytes, %w", n, err)
	}
	parcels, err := schema.DecodeParcels(b[stateSize:n])
	if err != nil {
		return fail("%w", err)
	}
	if parcels[0].Kind != control.ParcelKindEntry {
		return fail("begins with parcel %d", parcels[0].Kind)
	}
	var files []schema.FileRecord
	for _, p := range parcels[1:] {
		if p.Kind != control.ParcelKindFile {
			return fail("parcel %d among the files", p.Kind)
		}
		files = append(files, p.File)
	}
	r := parcels[0].Entry
	r.Hits = binary.LittleEndian.Uint64(b)
	r.LastUseNS = int64(binary.LittleEndian.Uint64(b[8:]))
	r.Pinned = binary.LittleEndian.Uint64(b[16:]) == 1
	return r, files, nil
}
