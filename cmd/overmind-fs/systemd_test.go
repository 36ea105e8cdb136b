package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

// A daemon that is killed and started again has what the killed one had.
func TestCrashKeepsEntries(t *testing.T) {
	m := newManager(t)
	d := m.start(t.TempDir(), nil)
	m.awaitReady(d)
	a, b, small := fill(t, d.dir, "a"), fill(t, d.dir, "b"), fstest.Small(d.dir, "small")
	must(t, small.Run())
	m.await(3 * perEntry)
	wantRun(t, exitOK, "", "pin", "--root", d.dir, "b")
	for range 2 {
		_, err := os.ReadFile(filepath.Join(a.Entry(), "structure.pkl"))
		must(t, err)
	}
	used := getattr(t, a.Entry(), overmindfs.AttrLastUse)
	d.kill(t)

	d = m.start(d.dir, nil)
	m.awaitReady(d)
	for _, f := range []fstest.Fill{a, b} {
		if got, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil || !bytes.Equal(got, fstest.Content(f.Size)) {
			t.Errorf("%s: %d bytes, %v", f.ID, len(got), err)
		}
	}
	must(t, small.Check()) // its small files were packed in both
	if n := memfds(t, d.cmd.Process.Pid); n != 2*2+1+1 {
		t.Errorf("%d memfds", n)
	}
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "small")
	if hits, last := getattr(t, a.Entry(), overmindfs.AttrHits), getattr(t, a.Entry(), overmindfs.AttrLastUse); hits != "2" || last != used {
		t.Errorf("%s hits, used at %s, want 2 and %s", hits, last, used)
	}
	if a, b := getattr(t, a.Entry(), overmindfs.AttrPinned), getattr(t, b.Entry(), overmindfs.AttrPinned); a != "0" || b != "1" {
		t.Errorf("pinned %s and %s", a, b)
	}
	// What is evicted leaves the store, what is pinned now is so after the next crash.
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "b")
	m.await(perEntry)
	wantRun(t, exitOK, "", "pin", "--root", d.dir, "a")
	fill(t, d.dir, "c")
	m.await(2 * perEntry)
	d.kill(t)
	d = m.start(d.dir, nil)
	m.awaitReady(d)
	if got := getattr(t, a.Entry(), overmindfs.AttrPinned); got != "1" {
		t.Errorf("pinned %s", got)
	}

	// An orderly end leaves the store to the manager, which keeps it over a restart.
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wantExit(t, exitOK)
	if !m.heard("STOPPING=1") || len(m.stored()) != 2*perEntry {
		t.Errorf("said %v, stored %v", m.said, m.stored())
	}
	d = m.start(d.dir, nil)
	m.awaitReady(d)
	if ids, err := entryIDs(d.dir); err != nil || !slices.Equal(ids, []string{"a", "c"}) {
		t.Errorf("%v, %v", ids, err)
	}
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "--all", "--force")
	m.await(0)
	eventually(t, "all memory is let go", func() bool { return memfds(t, d.cmd.Process.Pid) == 0 })
}

// What entries share is shared after a crash as well.
func TestCrashKeepsSharedArenas(t *testing.T) {
	m := newManager(t)
	d := m.start(t.TempDir(), nil)
	m.awaitReady(d)
	a := fill(t, d.dir, "a")
	b := fstest.Fill{Root: d.dir, ID: "b", Size: a.Size, From: a.Entry()}
	must(t, b.Run())
	m.await(2 * perEntry)
	d.kill(t)
	d = m.start(d.dir, nil)
	m.awaitReady(d)
	wantShared(t, d.dir, uint64(a.Size))
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "a")
	m.await(perEntry)
	d.kill(t)
	d = m.start(d.dir, nil)
	m.awaitReady(d)
	wantShared(t, d.dir, 0)
	if got, err := os.ReadFile(fstest.Arena(b.Entry())); err != nil || !bytes.Equal(got, fstest.Content(a.Size)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func wantShared(t *testing.T, dir string, want uint64) {
	t.Helper()
	s, err := readStatus(dir)
	must(t, err)
	if s.Bytes.Shared != want {
		t.Errorf("%+v, want %d shared", s.Bytes, want)
	}
}

// What is damaged, incomplete or foreign is refused by name; the rest is served.
func TestCrashWithBadDescriptors(t *testing.T) {
	m := newManager(t)
	d := m.start(t.TempDir(), nil)
	m.awaitReady(d)
	for _, id := range []string{"good", "cut", "swapped"} {
		fill(t, d.dir, id)
	}
	m.await(3 * perEntry)
	d.kill(t)

	byEntry := map[string][]int{} // of names and files
	m.mu.Lock()
	for i, name := range m.names {
		serial := strings.Split(name, "-")[1]
		byEntry[serial] = append(byEntry[serial], i)
	}
	record := map[string]string{} // id -> serial number
	for serial, at := range byEntry {
		buf := make([]byte, 4096)
		n, _ := m.files[at[len(at)-1]].ReadAt(buf, 0) // stored last
		for _, id := range []string{"good", "cut", "swapped"} {
			if bytes.Contains(buf[:n], []byte(id)) {
				record[id] = serial
			}
		}
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	lost := m.names[byEntry[record["cut"]][0]]
	at := byEntry[record["swapped"]][0]
	swapped := m.names[at]
	_ = m.files[at].Close()
	m.files[at] = null
	at = byEntry[record["cut"]][0]
	_ = m.files[at].Close()
	m.names, m.files = slices.Delete(m.names, at, at+1), slices.Delete(m.files, at, at+1)
	for _, name := range []string{"overmind-77777", "overmind-88888-1", "mail.socket"} {
		r, w, err := os.Pipe()
		must(t, err)
		_ = w.Close()
		m.names, m.files = append(m.names, name), append(m.files, r)
	}
	m.mu.Unlock()

	d = m.start(d.dir, nil)
	m.awaitReady(d)
	if ids, err := entryIDs(d.dir); err != nil || !slices.Equal(ids, []string{"good"}) {
		t.Errorf("%v, %v", ids, err)
	}
	m.await(perEntry + 1) // what is not ours stays
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wantExit(t, exitOK)
	for _, want := range []string{lost, swapped, "overmind-77777", "overmind-88888-1", "mail.socket", "cut", "swapped"} {
		if !strings.Contains(d.stderr.String(), want) {
			t.Errorf("no warning names %s:\n%s", want, d.stderr)
		}
	}
}

// A daemon that has taken over is the main process, and the one whose entries are kept.
func TestReplaceAsService(t *testing.T) {
	needBeneath(t)
	m := newManager(t)
	d := m.start(t.TempDir(), nil)
	m.awaitReady(d)
	a := fill(t, d.dir, "a")
	m.await(perEntry)
	open := startClientAs(t, openEnv, fstest.Arena(a.Entry()))
	before := m.stored()
	m.mu.Lock()
	files := m.files
	m.files, m.names = nil, nil // a control process gets none
	m.mu.Unlock()
	n := m.start(d.dir, nil, "--replace")
	m.mu.Lock()
	m.files, m.names = append(m.files, files...), append(m.names, before...)
	m.mu.Unlock()
	m.awaitReady(n)
	if want := fmt.Sprintf("MAINPID=%d", n.cmd.Process.Pid); !m.heard(want) {
		t.Errorf("not said: %s", want)
	}
	fill(t, d.dir, "b")
	m.await(2 * perEntry)
	open.wantSame(t)
	d.wantEnd(t)
	if m.heard("STOPPING=1") {
		t.Error("the service is not ending")
	}
	wantRun(t, exitOK, "", "pin", "--root", d.dir, "a")
	n.kill(t)
	d = m.start(d.dir, nil)
	m.awaitReady(d)
	if ids, err := entryIDs(d.dir); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("%v, %v\n%s", ids, err, d.stderr)
	}
	if got := getattr(t, a.Entry(), overmindfs.AttrPinned); got != "1" {
		t.Errorf("pinned %s", got)
	}
}

// No more is stored than the manager keeps, so that what is stored is whole.
func TestFullDescriptorStore(t *testing.T) {
	m := newManager(t)
	d := m.start(t.TempDir(), []string{fmt.Sprintf("FDSTORE=%d", 2*perEntry-1)})
	m.awaitReady(d)
	fill(t, d.dir, "a")
	fill(t, d.dir, "b")
	m.await(perEntry)
	wantRun(t, exitOK, "", "evict", "--root", d.dir, "a")
	m.await(0)
	fill(t, d.dir, "c")
	m.await(perEntry)
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wantExit(t, exitOK)
	if text := d.stderr.String(); !strings.Contains(text, "store is full") || !strings.Contains(text, "entry=b") {
		t.Errorf("no warning:\n%s", text)
	}
}

// A daemon in the background does not speak for the service that happened to start it.
func TestBackgroundSaysNothing(t *testing.T) {
	m := newManager(t)
	dir := t.TempDir()
	needFUSE(t)
	t.Cleanup(func() { unmountForGood(t, dir) })
	t.Setenv("NOTIFY_SOCKET", m.socket)
	wantRun(t, exitOK, "mounted "+dir, "mount", "--background", "--max-bytes", "64MiB", "--log-file", logFile(t), dir)
	fill(t, dir, "a")
	wantRun(t, exitOK, "", "umount", dir)
	if m.mu.Lock(); len(m.said)+len(m.names) > 0 {
		t.Errorf("said %v, stored %v", m.said, m.names)
	}
	m.mu.Unlock()
}

// The unit files, as systemd reads them.
func TestUnitFiles(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	program, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	for file, as := range map[string]string{
		"overmind-fs.service": "overmind-fs.service", "overmind-fs@.service": "overmind-fs@root.service",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "integration", "systemd", file))
		must(t, err)
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/overmind-fs"), []byte(program))
		path := filepath.Join(dir, as)
		must(t, os.WriteFile(path, text, 0o600))
		if out, err := exec.Command(verify, "verify", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}
