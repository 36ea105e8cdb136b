package schema_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"

	"overmind-fs/schema"
	"overmind-fs/schema/manifest"
	"overmind-fs/schema/schematest"

	flatbuffers "github.com/google/flatbuffers/go"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is committed; if that is meant, run go test -update", path)
	}
}

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	want := schematest.Sample("sd-turbo-0123456789ab")
	buf := schematest.Encode(want)
	golden(t, "sample.manifest", buf)
	got, err := schema.Decode(buf)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	clear(buf)
	if got.ID != want.ID || got.Key[0].Value != want.Key[0].Value {
		t.Error("the result refers to the buffer")
	}
}

func TestJSON(t *testing.T) {
	text, err := schematest.Sample("sd-turbo-0123456789ab").JSON()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sample.json", text)
}

// Every truncation and every flipped byte gives a manifest or an error, never a panic.
func TestDecodeSurvivesDamage(t *testing.T) {
	buf := schematest.Encode(schematest.Sample("a"))
	for n := range buf {
		if _, err := schema.Decode(buf[:n]); err != nil && !errors.Is(err, schema.ErrMalformed) {
			t.Fatalf("first %d bytes: %v", n, err)
		}
		for _, bits := range []byte{0x01, 0x80, 0xff} {
			damaged := bytes.Clone(buf)
			damaged[n] ^= bits
			checkDecode(t, damaged)
			checkAllocation(t, len(damaged), func() { _, _ = schema.Decode(damaged) })
		}
	}
}

// checkAllocation fails when f allocates more than a multiple of its input, and something for errors. While Go fuzzes it
// only calls f: what is counted is that of the process, and the fuzzer's own is in it.
func checkAllocation(t *testing.T, nbytes int, f func()) {
	t.Helper()
	if x := flag.Lookup("test.fuzz"); x != nil && x.Value.String() != "" {
		f()
		return
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10+40*uint64(nbytes) {
		t.Fatalf("%d bytes are allocated for %d", n, nbytes)
	}
}

// checkDecode decodes and, as a commit does, validates what was decoded.
func checkDecode(t *testing.T, buf []byte) {
	m, err := schema.Decode(buf)
	if err != nil {
		if !errors.Is(err, schema.ErrMalformed) {
			t.Fatal(err)
		}
		return
	}
	files := schema.Files{ID: m.ID, Arenas: map[string]uint64{}, StructureNbytes: m.StructureNbytes}
	for _, a := range m.Arenas {
		files.Arenas[a.Name] = a.Nbytes
	}
	if err := m.Validate(files); err != nil {
		if !errors.Is(err, schema.ErrInvalid) {
			t.Fatal(err)
		}
		return
	}
	if _, err := m.JSON(); err != nil && !errors.Is(err, schema.ErrTooLong) {
		t.Fatalf("a valid manifest cannot be shown: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(schematest.Encode(schematest.Sample("a")))
	f.Add(schematest.Encode(&schema.Manifest{Format: schema.Format, ID: "empty"}))
	f.Add(bomb(1 << 10))
	f.Add([]byte("\x08\x00\x00\x00OVMF"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		checkDecode(t, buf)
		checkAllocation(t, len(buf), func() { _, _ = schema.Decode(buf) })
	})
}

func TestDecodeNeedsIdentifierAndRequiredFields(t *testing.T) {
	good := schematest.Encode(schematest.Sample("a"))
	other := bytes.Clone(good)
	copy(other[4:], "XXXX")
	b := flatbuffers.NewBuilder(0)
	manifest.ManifestStart(b)
	manifest.FinishManifestBuffer(b, manifest.ManifestEnd(b))
	for name, buf := range map[string][]byte{
		"empty": nil, "long": append(bytes.Clone(good), make([]byte, schema.MaxBytes)...), "short": good[:7], "identifier": other, "no id": b.FinishedBytes(),
	} {
		if _, err := schema.Decode(buf); !errors.Is(err, schema.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bomb is a manifest of about 2*n bytes whose n/4 storage names are one and the same string of n bytes.
func bomb(n int) []byte {
	b := flatbuffers.NewBuilder(0)
	id := b.CreateString("bomb")
	long := b.CreateString(string(bytes.Repeat([]byte("x"), n)))
	manifest.ManifestStartStorageNamesVector(b, n/4)
	for range n / 4 {
		b.PrependUOffsetT(long)
	}
	names := b.EndVector(n / 4)
	manifest.ManifestStart(b)
	manifest.ManifestAddId(b, id)
	manifest.ManifestAddStorageNames(b, names)
	manifest.FinishManifestBuffer(b, manifest.ManifestEnd(b))
	return b.FinishedBytes()
}

func TestDecodeBoundsItsMemory(t *testing.T) {
	buf := bomb(1 << 20) // would take 256 GiB
	checkAllocation(t, len(buf), func() {
		if _, err := schema.Decode(buf); !errors.Is(err, schema.ErrMalformed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDecodeRefusesImpossibleCounts(t *testing.T) {
	buf := schematest.Encode(&schema.Manifest{ID: "a", Dims: []int64{1, 2, 3, 4, 5}})
	mark := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 2)
	at := bytes.Index(buf, mark) - 4
	if at < 0 || binary.LittleEndian.Uint32(buf[at:]) != 5 {
		t.Fatal("the vector was not found")
	}
	binary.LittleEndian.PutUint32(buf[at:], 0xffffffff)
	if _, err := schema.Decode(buf); !errors.Is(err, schema.ErrMalformed) {
		t.Errorf("got %v", err)
	}
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	flatc := os.Getenv("FLATC")
	if flatc == "" {
		flatc = "../.venv/bin/flatc"
	}
	if _, err := exec.LookPath(flatc); err != nil {
		t.Skipf("no flatc: %v", err)
	}
	if out, err := exec.Command("./generate.sh", "check").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
