package fs_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

const mib = int64(1) << 20

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrno(t *testing.T, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// eventually waits for what the kernel tells the daemon late, such as RELEASE.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// safeBuffer is a log that several goroutines write.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type mounted struct {
	*overmindfs.Mount
	dir   string
	store *store.Store
	log   *safeBuffer
}

func needFUSE(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("FUSE cannot be used: %v", err)
	}
	_ = f.Close()
}

func testMount(t *testing.T, change ...func(*overmindfs.Options, *store.Options)) *mounted {
	t.Helper()
	needFUSE(t)
	// Not t.TempDir: other users have to reach it.
	dir, err := os.MkdirTemp("", "overmind-test-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	log := &safeBuffer{}
	so := store.Options{
		MaxBytes: uint64(256 * mib), OS: store.NewOS(),
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	huge := store.ProbeHugePages(so.OS)
	so.HugePages = huge == nil
	fo := overmindfs.Options{
		Dir: dir, Version: "test", Logger: so.Logger, Passthrough: true, FDPassing: true, HugePages: huge,
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
	for _, c := range change {
		c(&fo, &so)
	}
	dir = fo.Dir
	s := store.New(so)
	fo.Store = s
	m, err := overmindfs.New(fo)
	if err != nil {
		_ = os.Remove(dir)
		t.Fatal(err)
	}
	must(t, m.WaitMount())
	t.Cleanup(func() {
		eventually(t, "all handles released", func() bool {
			st := s.Stats()
			return st.Leases == 0 && st.DrainingBytes == 0
		})
		if err := s.Check(); err != nil {
			t.Errorf("invariants: %v", err)
		}
		if lazy, err := m.Unmount(); err != nil || lazy {
			t.Errorf("unmount: lazy %v, %v", lazy, err)
		}
		s.Close()
		if st := s.Stats(); st.CachedBytes+st.StagingBytes+st.DrainingBytes != 0 {
			t.Errorf("bytes are left: %+v", st)
		}
		if kind, _ := overmindfs.MountedType(dir); kind != "" {
			t.Errorf("the mount is still there: %s", kind)
		}
		must(t, os.Remove(dir))
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
	return &mounted{m, dir, s, log}
}

func withoutPassthrough(o *overmindfs.Options, _ *store.Options) { o.Passthrough = false }

func (m *mounted) fill(t *testing.T, id string, size int64) fstest.Fill {
	t.Helper()
	f := fstest.Fill{Root: m.dir, ID: id, Size: size}
	must(t, f.Run())
	return f
}

func (m *mounted) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

func (m *mounted) needPassthrough(t *testing.T) {
	t.Helper()
	if s := m.Status(); !s.Passthrough.Active {
		t.Skipf("no passthrough: %s", s.Passthrough.Reason)
	}
}

// metric reads one value from the file metrics.
func (m *mounted) metric(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(m.path("metrics"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "overmind_"+name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s in\n%s", name, text)
	return ""
}

func TestFillMapAndRead(t *testing.T) {
	for _, mode := range []string{"passthrough", "daemon"} {
		t.Run(mode, func(t *testing.T) {
			m := testMount(t, func(o *overmindfs.Options, _ *store.Options) { o.Passthrough = mode == "passthrough" })
			if mode == "passthrough" {
				m.needPassthrough(t)
			}
			const size = 5*mib + 12345
			start(t, 0, "fill", m.dir, "a", fmt.Sprint(size)).finish()
			f := fstest.Fill{Root: m.dir, ID: "a", Size: size}
			want := fstest.Content(size)

			got, err := os.ReadFile(fstest.Arena(f.Entry()))
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Error("the arena has other bytes than were written")
			}
			sum := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
			c := start(t, 0, "map", fstest.Arena(f.Entry()))
			if c.line() != sum(want) {
				t.Error("the mapped arena has other bytes")
			}
			c.finish()
			for name, part := range map[string][]byte{
				"0.all": want, "1.half_way": want[size/4 : size/4+size/2], "2": {},
			} {
				got, err := os.ReadFile(filepath.Join(f.Entry(), "storages", name))
				must(t, err)
				if !bytes.Equal(got, part) {
					t.Errorf("storages/%s has other bytes", name)
				}
				if len(part) > 0 {
					c := start(t, 0, "map", filepath.Join(f.Entry(), "storages", name))
					if c.line() != sum(part) {
						t.Errorf("storages/%s has other bytes when mapped", name)
					}
					c.finish()
				}
			}
			structure, err := os.ReadFile(filepath.Join(f.Entry(), "structure.pkl"))
			must(t, err)
			if !bytes.Equal(structure, fstest.Content(fstest.StructureNbytes)) {
				t.Error("structure.pkl has other bytes")
			}
			reads, writes := m.metric(t, "arena_reads_total"), m.metric(t, "arena_writes_total")
			if served := reads != "0" || writes != "0"; served != (mode == "daemon") {
				t.Errorf("the daemon served %s reads and %s writes", reads, writes)
			}
		})
	}
}

func TestStatusAndMetrics(t *testing.T) {
	m := testMount(t)
	f := m.fill(t, "a", mib)
	_, err := os.ReadFile(filepath.Join(f.Entry(), "structure.pkl"))
	must(t, err)
	text, err := os.ReadFile(m.path("status.json"))
	must(t, err)
	var s overmindfs.Status
	must(t, json.Unmarshal(text, &s))
	if s.Entries != 1 || s.Hits != 1 || s.Fills.Committed != 1 || s.Bytes.Cached < uint64(mib) ||
		s.PID != os.Getpid() || s.Mount != m.dir || s.Limits.MaxBytes != uint64(256*mib) {
		t.Errorf("status %s", text)
	}
	if got := m.metric(t, "hits_total"); got != "1" {
		t.Errorf("hits %s", got)
	}
	before := m.metric(t, "misses_total")
	_, err = os.Stat(m.path("pipelines", "absent"))
	wantErrno(t, err, syscall.ENOENT)
	if got := m.metric(t, "misses_total"); got == before {
		t.Errorf("misses %s before and after one", got)
	}
	if got := m.metric(t, "fill_bytes_total"); got == "0" {
		t.Errorf("no bytes were filled")
	}
	problems, err := testutil.GatherAndLint(m.Metrics())
	must(t, err)
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
	for name, want := range map[string]string{
		"fills_started_total": "1", `fills_total{result="committed"}`: "1", `fills_total{result="failed"}`: "0",
	} {
		if got := m.metric(t, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	var doc map[string]any
	text, err = os.ReadFile(filepath.Join(f.Entry(), "manifest.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &doc))
	if doc["id"] != "a" {
		t.Errorf("manifest.json %s", text)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(f.Entry(), "manifest.json"), &st))
	if st.Size != int64(len(text)) {
		t.Errorf("manifest.json has size %d, %d bytes", st.Size, len(text))
	}
	if out, err := exec.Command("cp", filepath.Join(f.Entry(), "manifest.json"), os.DevNull).CombinedOutput(); err != nil {
		t.Errorf("cp: %v: %s", err, out)
	}
}

// One file tells of all entries what their manifests and attributes say.
func TestEntriesList(t *testing.T) {
	m := testMount(t)
	list := func() []overmindfs.Listed {
		t.Helper()
		text, err := os.ReadFile(m.path(overmindfs.EntriesName))
		must(t, err)
		var out []overmindfs.Listed
		must(t, json.Unmarshal(text, &out))
		return out
	}
	if got := list(); got == nil || len(got) != 0 {
		t.Errorf("of no entries: %v", got)
	}
	m.fill(t, "b", 2*mib)
	a := m.fill(t, "a", mib)
	must(t, unix.Setxattr(a.Entry(), overmindfs.AttrPinned, []byte("1"), 0))
	_, err := os.ReadFile(filepath.Join(a.Entry(), "structure.pkl"))
	must(t, err)
	c := start(t, 0, "open", fstest.Arena(a.Entry()))
	c.line()
	must(t, fstest.Fill{Root: m.dir, ID: "staged", Size: mib}.Stage())
	got := list()
	if len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
		t.Fatalf("got %+v", got)
	}
	used, err := strconv.ParseInt(attr(t, a.Entry(), "last_use"), 10, 64)
	must(t, err)
	bytes, err := strconv.ParseUint(attr(t, a.Entry(), "bytes"), 10, 64)
	must(t, err)
	want := overmindfs.Listed{
		ID: "a", ClassName: "test.Model", ModelName: "tiny", Loader: "test.load", CreatedNS: 1, FillSeconds: 2.5,
		UID: uint32(os.Geteuid()), Bytes: bytes, StructureNbytes: fstest.StructureNbytes,
		Arenas: []store.ArenaSize{{Name: fstest.ArenaName, Bytes: uint64(mib)}},
		Pinned: true, Hits: 1, Leases: 1, LeasePIDs: []int{c.cmd.Process.Pid}, LastUse: used,
	}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v\nwant %+v", got[0], want)
	}
	c.finish()
}

func TestPanicBecomesEIO(t *testing.T) {
	m := testMount(t)
	m.AddPanickingFile("panic")
	_, err := os.ReadFile(m.path("panic"))
	wantErrno(t, err, syscall.EIO)
	if log := m.log.String(); !strings.Contains(log, "panic in a request handler") || !strings.Contains(log, "stack=") {
		t.Errorf("log: %s", log)
	}
	m.fill(t, "a", mib) // it goes on
}

func TestStatfsShowsTheBudget(t *testing.T) {
	m := testMount(t)
	m.fill(t, "a", 64*mib)
	var st unix.Statfs_t
	must(t, unix.Statfs(m.dir, &st))
	total, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	if total != 256*mib || free >= 192*mib || free < 190*mib {
		t.Errorf("%d of %d bytes free", free, total)
	}
}

func TestGNUremove(t *testing.T) {
	rm, err := exec.LookPath("rm")
	if err != nil {
		t.Skip(err)
	}
	m := testMount(t)
	f := m.fill(t, "a", mib)
	out, err := exec.Command(rm, "-r", f.Entry()).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("rm -r: %v: %s", err, out)
	}
	if s := m.store.Stats(); s.CachedBytes != 0 {
		t.Errorf("stats %+v", s)
	}
	must(t, fstest.Fill{Root: m.dir, ID: "b", Size: mib}.Stage())
	if out, err := exec.Command(rm, "-r", m.path("staging", "b")).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("rm -r of a staging: %v: %s", err, out)
	}
}
