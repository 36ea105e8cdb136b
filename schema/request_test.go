package schema_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"

	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

var sampleRequest = schema.Request{
	Op: control.OpOpenStaged, ID: "sd-turbo-0123456789ab", Name: "unet.safetensors", Inode: 3 << 28,
}

func TestRequestAndReplyRoundTrip(t *testing.T) {
	for _, want := range []schema.Request{
		sampleRequest, {Op: control.OpOpenPublished, ID: "a", Name: "b.safetensors"}, {Op: control.OpTakeOver}, {Op: control.OpSwitch},
	} {
		message := want.Encode()
		got, err := schema.DecodeRequest(message)
		if err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		clear(message)
		if got != want {
			t.Error("the request refers to the message")
		}
	}
	for _, want := range []schema.Reply{{}, {Code: 2, Message: "no such entry"}} {
		if got, err := schema.DecodeReply(want.Encode()); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if long := (schema.Reply{Message: strings.Repeat("x", 1<<20)}).Encode(); len(long) > schema.MaxMessage {
		t.Errorf("a reply of %d bytes", len(long))
	}
}

func TestRequestGolden(t *testing.T) {
	golden(t, "sample.request", sampleRequest.Encode())
	golden(t, "sample.reply", schema.Reply{Code: 2, Message: "no such entry"}.Encode())
}

// rawRequest encodes what Request.Encode does not.
func rawRequest(version uint32, op control.Op, id, name string, pad int) []byte {
	b := flatbuffers.NewBuilder(0)
	_ = b.CreateByteString(make([]byte, pad))
	i, n := b.CreateString(id), b.CreateString(name)
	control.RequestStart(b)
	control.RequestAddVersion(b, version)
	control.RequestAddOp(b, op)
	if id != "" {
		control.RequestAddId(b, i)
	}
	if name != "" {
		control.RequestAddName(b, n)
	}
	control.FinishSizePrefixedRequestBuffer(b, control.RequestEnd(b))
	return b.FinishedBytes()
}

func TestBadRequests(t *testing.T) {
	good := sampleRequest.Encode()
	other := bytes.Clone(good)
	copy(other[8:], "XXXX")
	short := bytes.Clone(good)
	short[0]++
	const name = "x.safetensors"
	for what, c := range map[string]struct {
		message []byte
		want    error
	}{
		"nothing":           {nil, schema.ErrFrame},
		"half a length":     {good[:2], schema.ErrFrame},
		"cut":               {good[:len(good)-1], schema.ErrFrame},
		"too much":          {append(bytes.Clone(good), 0), schema.ErrFrame},
		"another length":    {short, schema.ErrFrame},
		"too long":          {rawRequest(1, 1, "a", name, schema.MaxFrame), schema.ErrFrame},
		"empty frame":       {make([]byte, 4), schema.ErrRequest},
		"identifier":        {other, schema.ErrRequest},
		"version":           {rawRequest(2, 1, "a", name, 0), schema.ErrVersion},
		"no operation":      {rawRequest(1, 0, "a", name, 0), schema.ErrRequest},
		"unknown operation": {rawRequest(1, 77, "a", name, 0), schema.ErrRequest},
		"no id":             {rawRequest(1, 1, "", name, 0), schema.ErrRequest},
		"no name":           {rawRequest(1, 1, "a", "", 0), schema.ErrRequest},
		"path as id":        {rawRequest(1, 1, "../a", name, 0), schema.ErrRequest},
		"path as name":      {rawRequest(1, 1, "a", "../"+name, 0), schema.ErrRequest},
		"blob":              {rawRequest(1, 1, "a", "structure.pkl", 0), schema.ErrRequest},
	} {
		if r, err := schema.DecodeRequest(c.message); !errors.Is(err, c.want) || r != (schema.Request{}) {
			t.Errorf("%s: %+v, %v; want %v", what, r, err, c.want)
		}
	}
}

// Every truncation and every flipped byte gives a request or an error, never a panic.
func TestRequestSurvivesDamage(t *testing.T) {
	good := sampleRequest.Encode()
	for n := range good {
		checkRequest(t, good[:n])
		for _, bits := range []byte{0x01, 0x80, 0xff} {
			damaged := bytes.Clone(good)
			damaged[n] ^= bits
			checkRequest(t, damaged)
			checkAllocation(t, len(damaged), func() { _, _ = schema.DecodeRequest(damaged) })
		}
	}
}

func checkRequest(t *testing.T, message []byte) {
	r, err := schema.DecodeRequest(message)
	if err == nil && r.Op != control.OpTakeOver && r.Op != control.OpSwitch && (!schema.ValidID(r.ID) || !schema.ValidArenaName(r.Name)) {
		t.Fatalf("accepted %+v", r)
	}
	for _, want := range []error{schema.ErrFrame, schema.ErrRequest, schema.ErrVersion} {
		if err == nil || errors.Is(err, want) {
			return
		}
	}
	t.Fatal(err)
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(sampleRequest.Encode())
	f.Add(rawRequest(1, 1, "a", "b.safetensors", 100))
	f.Add(rawRequest(2, 0, "", "", 0))
	f.Add([]byte("\x08\x00\x00\x00\x08\x00\x00\x00OVMC"))
	f.Fuzz(func(t *testing.T, message []byte) {
		checkRequest(t, message)
		_, _ = schema.DecodeReply(message)
		checkAllocation(t, len(message), func() { _, _ = schema.DecodeRequest(message) })
	})
}
