package schema_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

var sampleParcels = []schema.Parcel{
	{Kind: control.ParcelKindEntry, Entry: schema.EntryRecord{
		Serial: 7, ID: "sd-turbo-0123456789ab", UID: 1000, GID: 1001, PID: 4242, Staging: true, HasTensors: true,
		CreatedNS: 1_700_000_000_000_000_001, LastUseNS: 1_700_000_000_000_000_002, Hits: 3, Pinned: true,
	}},
	{Kind: control.ParcelKindFile, File: schema.FileRecord{Entry: 7, Serial: 8, Name: "unet.safetensors", Arena: true, Huge: true}},
	{Kind: control.ParcelKindFrozen},
	{Kind: control.ParcelKindEnd},
	{Kind: control.ParcelKindFailed, Message: "busy"},
}

func TestParcelRoundTrip(t *testing.T) {
	var all []byte
	for _, want := range sampleParcels {
		message := want.Encode()
		if got, err := schema.DecodeParcel(message); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		all = append(all, message...)
	}
	if got, err := schema.DecodeParcels(all); err != nil || !reflect.DeepEqual(got, sampleParcels) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := schema.DecodeParcels(all[:len(all)-1]); !errors.Is(err, schema.ErrFrame) {
		t.Error(err)
	}
	long := schema.Parcel{Kind: control.ParcelKindEntry, Entry: schema.EntryRecord{ID: strings.Repeat("x", 200)}}
	if n := len(long.Encode()); n > schema.MaxMessage {
		t.Errorf("an entry of %d bytes", n)
	}
}

func TestParcelSurvivesDamage(t *testing.T) {
	for _, p := range sampleParcels {
		good := p.Encode()
		for n := range good {
			checkParcel(t, good[:n])
			for _, bits := range []byte{0x01, 0x80, 0xff} {
				damaged := bytes.Clone(good)
				damaged[n] ^= bits
				checkParcel(t, damaged)
				checkAllocation(t, len(damaged), func() { _, _ = schema.DecodeParcels(damaged) })
			}
		}
	}
}

func checkParcel(t *testing.T, message []byte) {
	t.Helper()
	p, err := schema.DecodeParcel(message)
	if err == nil && p.Kind == control.ParcelKindEntry && !schema.ValidID(p.Entry.ID) {
		t.Fatalf("accepted %+v", p)
	}
	for _, want := range []error{schema.ErrFrame, schema.ErrRequest, schema.ErrVersion} {
		if err == nil || errors.Is(err, want) {
			return
		}
	}
	t.Fatal(err)
}

func FuzzDecodeParcels(f *testing.F) {
	for _, p := range sampleParcels {
		f.Add(p.Encode())
	}
	f.Fuzz(func(t *testing.T, buf []byte) {
		checkParcel(t, buf)
		checkAllocation(t, len(buf), func() { _, _ = schema.DecodeParcels(buf) })
	})
}
