package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"overmind-fs/schema"
	"overmind-fs/schema/schematest"
)

const (
	kib = uint64(1) << 10
	mib = uint64(1) << 20
)

var (
	alice = Caller{UID: 1000, GID: 1000, PID: 10}
	bob   = Caller{UID: 1001, GID: 1001, PID: 20}
	root  = Caller{}
)

// fixture is a store whose invariants are checked when the test ends, together with what it may have leaked.
type fixture struct {
	*Store
	t   *testing.T
	os  *OS
	now time.Time
	log *bytes.Buffer
}

func newFixture(t *testing.T, maxBytes uint64, change ...func(*Options)) *fixture {
	t.Helper()
	fx := &fixture{t: t, now: time.Unix(1_700_000_000, 0), log: &bytes.Buffer{}}
	calls := NewOS()
	calls.Headroom = func() (uint64, error) { return 1 << 40, nil }
	calls.Scarce = func() (bool, error) { return true, nil }
	opts := Options{
		MaxBytes: maxBytes, OS: calls, CommitWait: 50 * time.Millisecond,
		Now:    func() time.Time { fx.now = fx.now.Add(time.Millisecond); return fx.now },
		Logger: slog.New(slog.NewTextHandler(fx.log, nil)),
	}
	for _, c := range change {
		c(&opts)
	}
	fds := openFiles(t)
	fx.Store = New(opts)
	fx.os = fx.Store.os
	t.Cleanup(func() {
		if err := fx.Check(); err != nil {
			t.Errorf("invariants: %v", err)
		}
		fx.Close()
		if err := fx.Check(); err != nil {
			t.Errorf("invariants after close: %v", err)
		}
		if s := fx.Stats(); s.CachedBytes+s.StagingBytes+s.DrainingBytes != 0 {
			t.Errorf("bytes are left after close (was a handle not released?): %+v", s)
		}
		if n := openFiles(t); n != fds {
			t.Errorf("%d file descriptors before, %d after", fds, n)
		}
	})
	return fx
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// manifestFor describes one arena of size bytes that is one storage.
func manifestFor(id string, size uint64) *schema.Manifest {
	return &schema.Manifest{
		Format: schema.Format, ID: id, Scope: "scope", CreatedNS: 1, StructureNbytes: 100,
		Arenas:       []schema.Arena{{Name: "model.safetensors", Nbytes: size}},
		Storages:     []schema.Storage{{Nbytes: size}},
		StorageNames: []string{"w"}, Devices: []string{"cpu"},
	}
}

func write(t *testing.T, e *Entry, name string, data []byte) {
	t.Helper()
	_, h, err := e.CreateBlob(name, e.Owner())
	must(t, err)
	defer h.Release()
	n, err := h.WriteAt(data, 0)
	must(t, err)
	if n != len(data) {
		t.Fatalf("wrote %d of %d", n, len(data))
	}
}

// stage makes a complete staging; the handle of the arena is still open for writing.
func (fx *fixture) stage(id string, size uint64, c Caller) (*Entry, *Handle) {
	fx.t.Helper()
	e, err := fx.Begin(id, c)
	must(fx.t, err)
	must(fx.t, e.MakeTensors(c))
	f, h, err := e.CreateArena("model.safetensors", c)
	must(fx.t, err)
	must(fx.t, f.Truncate(size))
	write(fx.t, e, StructureName, make([]byte, 100))
	write(fx.t, e, ManifestName, schematest.Encode(manifestFor(id, size)))
	return e, h
}

// fill publishes an entry.
func (fx *fixture) fill(id string, size uint64, c Caller) *Entry {
	fx.t.Helper()
	e, h := fx.stage(id, size, c)
	h.Release()
	must(fx.t, fx.Commit(context.Background(), id, c, false))
	return e
}

// lease opens the arena of a published entry.
func (fx *fixture) lease(e *Entry, pid int) *Handle {
	fx.t.Helper()
	f, err := e.File(TensorsName, "model.safetensors")
	must(fx.t, err)
	h, err := f.Open(false, pid)
	must(fx.t, err)
	return h
}

func (fx *fixture) wantEntries(ids ...string) {
	fx.t.Helper()
	got := fx.PublishedIDs()
	if len(got) != len(ids) {
		fx.t.Fatalf("entries %v, want %v", got, ids)
	}
	for i := range ids {
		if got[i] != ids[i] {
			fx.t.Fatalf("entries %v, want %v", got, ids)
		}
	}
}

func encodedManifest(id string, size uint64) []byte { return schematest.Encode(manifestFor(id, size)) }
