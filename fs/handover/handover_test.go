package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
	"overmind-fs/schema/schematest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const size = 1 << 20

// pair returns both ends of a connection, and checks that no descriptor is left at the end.
func pair(t *testing.T) (old, young *net.UnixConn) {
	t.Helper()
	before := openFiles(t)
	t.Cleanup(func() {
		if after := openFiles(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var ends []*net.UnixConn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		must(t, err)
		must(t, f.Close())
		t.Cleanup(func() { _ = c.Close() })
		ends = append(ends, c.(*net.UnixConn))
	}
	return ends[0], ends[1]
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

func newStore(t *testing.T) *store.Store {
	t.Helper()
	s := store.New(store.Options{MaxBytes: 64 * size, OS: store.NewOS()})
	t.Cleanup(func() {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

func stage(t *testing.T, s *store.Store, id string) *store.Entry {
	t.Helper()
	e, err := s.Begin(id, store.Caller{})
	must(t, err)
	must(t, e.MakeTensors(store.Caller{}))
	f, h, err := e.CreateArena("model.safetensors", store.Caller{})
	must(t, err)
	must(t, f.Truncate(size))
	h.Release()
	manifest := schematest.Encode(&schema.Manifest{
		Format: schema.Format, ID: id, StructureNbytes: 10, Arenas: []schema.Arena{{Name: "model.safetensors", Nbytes: size}},
	})
	for name, data := range map[string][]byte{store.ManifestName: manifest, store.StructureName: make([]byte, 10)} {
		_, h, err := e.CreateBlob(name, store.Caller{})
		must(t, err)
		_, err = h.WriteAt(data, 0)
		must(t, err)
		h.Release()
	}
	return e
}

func publish(t *testing.T, s *store.Store, id string) *store.Entry {
	t.Helper()
	e := stage(t, s, id)
	must(t, s.Commit(context.Background(), id, store.Caller{}, false))
	return e
}

func takeover(t *testing.T, c *net.UnixConn, into *store.Store, log io.Writer) *Takeover {
	h := &Takeover{c: c, into: into, log: slog.New(slog.NewTextHandler(log, nil)), have: map[uint64]*parcel{}}
	t.Cleanup(h.Close)
	return h
}

// The second part brings what has changed since the first one.
func TestChangesBetweenTheParts(t *testing.T) {
	old, young := pair(t)
	s, into := newStore(t), newStore(t)
	a := publish(t, s, "a")
	for _, id := range []string{"b", "c"} {
		publish(t, s, id)
	}
	o := offer{c: old, store: s, sent: map[uint64]bool{}}
	begun := make(chan error)
	go func() { begun <- o.entries(s.Records(false)) }()
	h := takeover(t, young, into, io.Discard)
	collected := make(chan []*store.Adoption)
	go func() {
		all, err := h.Collect(context.Background())
		if err != nil {
			t.Error(err)
		}
		collected <- all
	}()
	must(t, <-begun)
	must(t, s.Evict("b", store.Caller{}))
	must(t, a.SetPinned(store.Caller{}, true))
	a.Hit()
	c := publish(t, s, "c")
	publish(t, s, "d")
	stage(t, s, "e")
	must(t, s.Freeze(context.Background()))
	must(t, o.rest())
	must(t, into.Adopt(<-collected))
	s.Thaw()
	if got := into.PublishedIDs(); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("entries %v", got)
	}
	if got := into.StagingIDs(); !slices.Equal(got, []string{"e"}) {
		t.Errorf("stagings %v", got)
	}
	e, err := into.Published("a")
	must(t, err)
	if info := e.Info(); !info.Pinned || info.Hits != 1 {
		t.Errorf("%+v", info)
	}
	if e, err = into.Published("c"); err != nil || e.Serial() != c.Serial() {
		t.Errorf("%v, %v", e, err)
	}
	must(t, into.Commit(context.Background(), "e", store.Caller{}, false))
}

// A damaged entry is left out, with a warning that names it and its file; the others come.
func TestDamagedEntryIsLeftOut(t *testing.T) {
	old, young := pair(t)
	var log bytes.Buffer
	h := takeover(t, young, newStore(t), &log)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	for _, m := range []struct {
		schema.Parcel
		fd int
	}{
		{schema.Parcel{Kind: control.ParcelKindFrozen}, -1},
		{schema.Parcel{Kind: control.ParcelKindEntry, Entry: schema.EntryRecord{Serial: 1, ID: "bad"}}, -1},
		{schema.Parcel{Kind: control.ParcelKindFile, File: schema.FileRecord{Entry: 1, Serial: 2, Name: "manifest"}}, fd},
		{schema.Parcel{Kind: control.ParcelKindEnd}, -1},
	} {
		must(t, fdpass.Send(old, m.Encode(), m.fd))
	}
	must(t, unix.Close(fd))
	if all, err := h.Collect(context.Background()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if got := log.String(); !strings.Contains(got, "entry=bad") || !strings.Contains(got, "manifest: seals did not hold") {
		t.Errorf("log: %s", got)
	}
}

// refused has a store hand everything over, which fails, and the other side hears why; the error of the former.
func refused(t *testing.T, s *store.Store, old, young *net.UnixConn, why string) error {
	t.Helper()
	ended := make(chan error)
	go func() { ended <- Offer(context.Background(), old, s, nil) }()
	message, _, err := fdpass.Receive(young)
	must(t, err)
	must(t, reply(message))
	h := takeover(t, young, newStore(t), io.Discard)
	if _, err := h.Collect(context.Background()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v", err)
	}
	return <-ended
}

func TestRefusalIsTold(t *testing.T) {
	old, young := pair(t)
	s := newStore(t)
	publish(t, s, "a")
	must(t, s.Freeze(context.Background()))
	defer s.Thaw()
	if err := refused(t, s, old, young, "another takeover"); !errors.Is(err, store.ErrBusy) {
		t.Error(err)
	}
}

// Where there is no descriptor to hand a small file over, both sides hear of it, and the running daemon goes on.
func TestSmallFileCannotBeLent(t *testing.T) {
	old, young := pair(t)
	var full atomic.Bool
	calls := store.NewOS()
	real := calls.MemfdCreate
	calls.MemfdCreate = func(name string, flags int) (int, error) {
		if full.Load() {
			return -1, unix.EMFILE
		}
		return real(name, flags)
	}
	s := store.New(store.Options{MaxBytes: 64 * size, OS: calls})
	t.Cleanup(s.Close)
	publish(t, s, "a")
	full.Store(true)
	if err := refused(t, s, old, young, "too many open files"); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "hand a over") {
		t.Error(err)
	}
	full.Store(false)
	publish(t, s, "b")
	must(t, s.Check())
}

// A takeover that ends half-way leaves nothing of what was packed.
func TestPackedFilesAreGivenUp(t *testing.T) {
	old, young := pair(t)
	s, into := newStore(t), newStore(t)
	for _, id := range []string{"a", "b", "c"} {
		publish(t, s, id)
	}
	before := openFiles(t)
	h := takeover(t, young, into, io.Discard)
	o := offer{c: old, store: s, sent: map[uint64]bool{}}
	must(t, o.entries(s.Records(false)))
	must(t, o.send(schema.Parcel{Kind: control.ParcelKindFailed, Message: "no more"}.Encode(), -1))
	if _, err := h.Collect(context.Background()); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
	if n := openFiles(t) - before; n < 3 || n > 6 { // two arenas, the pack, and one entry that was not checked yet
		t.Errorf("%d descriptors for three entries", n)
	}
	h.Close()
	if n := openFiles(t); n != before-1 { // the connection
		t.Errorf("%d descriptors before, %d after", before, n)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	file := schema.Parcel{Kind: control.ParcelKindFile, File: schema.FileRecord{Entry: 1, Serial: 2, Name: "manifest"}}
	for what, m := range map[string]struct {
		message []byte
		withFD  bool
		want    error
	}{
		"a file of no entry":            {file.Encode(), true, schema.ErrRequest},
		"a file without its descriptor": {file.Encode(), false, schema.ErrRequest},
		"an end with a descriptor":      {schema.Parcel{Kind: control.ParcelKindEnd}.Encode(), true, schema.ErrRequest},
		"a path as id": {schema.Parcel{
			Kind: control.ParcelKindEntry, Entry: schema.EntryRecord{ID: "../a"},
		}.Encode(), false, schema.ErrRequest},
		"an unknown kind": {schema.Parcel{Kind: 77}.Encode(), false, schema.ErrRequest},
		"no frame":        {[]byte("hello"), false, schema.ErrFrame},
		"nothing":         {nil, false, io.EOF},
	} {
		t.Run(what, func(t *testing.T) {
			old, young := pair(t)
			fd := -1
			if m.withFD {
				var err error
				fd, err = unix.MemfdCreate("test", unix.MFD_CLOEXEC)
				must(t, err)
			}
			if m.message != nil {
				must(t, fdpass.Send(old, m.message, fd))
			}
			closeFD(fd)
			must(t, old.Close())
			h := takeover(t, young, newStore(t), io.Discard)
			if _, err := h.Collect(context.Background()); !errors.Is(err, m.want) {
				t.Errorf("%v, want %v", err, m.want)
			}
		})
	}
}

// Whoever is interrupted while the other side has commits under way gives the takeover up, at once and for good.
func TestInterruptedBeforeTheEnd(t *testing.T) {
	old, young := pair(t)
	s := newStore(t)
	publish(t, s, "a")
	h := takeover(t, young, newStore(t), io.Discard)
	o := offer{c: old, store: s, sent: map[uint64]bool{}}
	must(t, o.entries(s.Records(false)))
	ctx, interrupt := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, interrupt)
	if all, err := h.Collect(ctx); !errors.Is(err, ErrRefused) || !errors.Is(err, context.Canceled) || all != nil {
		t.Errorf("%v, %v", all, err)
	}
	if err := o.rest(); err == nil {
		t.Error("the other side does not notice")
	}
}
