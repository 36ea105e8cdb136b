package fs_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

// Other processes see an entry come and go at once: nothing about it is remembered by the kernel.
func TestEntriesComeAndGoAtOnce(t *testing.T) {
	m := testMount(t)
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
	c := start(t, 0, "stat", filepath.Join(f.Entry(), "manifest"))
	look := func() string {
		_, err := c.in.Write([]byte("\n"))
		must(t, err)
		return c.line()
	}
	for range 3 {
		if got := look(); got != "ENOENT" {
			t.Fatalf("before: %s", got)
		}
		must(t, f.Run())
		if got := look(); got != "ok" {
			t.Fatalf("published: %s", got)
		}
		must(t, unix.Rmdir(f.Entry()))
	}
	// Also when the daemon evicts by itself.
	must(t, f.Run())
	look()
	m.fill(t, "b", 255*mib)
	if got := look(); got != "ENOENT" {
		t.Fatalf("evicted: %s", got)
	}
}

func TestEvictWhileOpenAndMapped(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := m.fill(t, "a", 4*mib)
		c := start(t, 0, "map", fstest.Arena(f.Entry()))
		sum := c.line()
		must(t, unix.Rmdir(f.Entry()))
		_, err := os.Stat(f.Entry())
		wantErrno(t, err, syscall.ENOENT)
		if s := m.store.Stats(); s.CachedBytes != 0 || s.DrainingBytes != uint64(4*mib) {
			t.Errorf("stats %+v", s)
		}
		if again := c.finish(); again != sum {
			t.Errorf("the mapping changed: %s, %s", sum, again)
		}
		eventually(t, "drained", func() bool { return m.store.Stats().DrainingBytes == 0 })
	})
}

// A lease is a handle, whoever holds it and however: also on a window, also in another process, also after a kill.
func TestLeases(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := m.fill(t, "a", 100*mib)
		c := start(t, 0, "open", filepath.Join(f.Entry(), "storages", "1.half_way"))
		c.line()
		if got := attr(t, f.Entry(), "leases"); got != "1" {
			t.Errorf("leases %s", got)
		}
		if got := attr(t, f.Entry(), "lease_pids"); got != strconv.Itoa(c.cmd.Process.Pid) {
			t.Errorf("lease_pids %s, want %d", got, c.cmd.Process.Pid)
		}
		b := fstest.Fill{Root: m.dir, ID: "b", Size: 200 * mib}
		wantErrno(t, b.Stage(), syscall.ENOSPC)
		must(t, unix.Rmdir(b.Staging()))
		c.kill()
		eventually(t, "released", func() bool { return m.store.Stats().Leases == 0 })
		must(t, b.Run())
		_, err := os.Stat(f.Entry())
		wantErrno(t, err, syscall.ENOENT)
	})
}

// After the first unlink no reader gets in any more, and what is left can be removed name by name.
func TestTombstone(t *testing.T) {
	m := testMount(t)
	f := m.fill(t, "a", mib)
	in := func(name string) string { return filepath.Join(f.Entry(), name) }
	_, err := os.ReadFile(in("manifest"))
	must(t, err)
	must(t, unix.Unlink(in("storages/0.all")))
	for _, name := range []string{"manifest", "structure.pkl", "manifest.json", "tensors/model.safetensors", "storages/2"} {
		_, err := os.ReadFile(in(name))
		wantErrno(t, err, syscall.ENOENT)
	}
	must(t, unix.Unlink(in("manifest")))
	_, err = os.Stat(in("manifest"))
	wantErrno(t, err, syscall.ENOENT)
	names, err := os.ReadDir(f.Entry())
	must(t, err)
	if len(names) != 4 {
		t.Errorf("left: %v", names)
	}
	wantErrno(t, unix.Rmdir(in("storages")), syscall.ENOTEMPTY)
	for _, name := range []string{"storages/1.half_way", "storages/2", "tensors/model.safetensors", "structure.pkl", "manifest.json"} {
		must(t, unix.Unlink(in(name)))
	}
	must(t, unix.Rmdir(in("storages")))
	must(t, unix.Rmdir(in("tensors")))
	names, err = os.ReadDir(f.Entry())
	must(t, err)
	if len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	must(t, unix.Rmdir(f.Entry()))
	_, err = os.Stat(f.Entry())
	wantErrno(t, err, syscall.ENOENT)
	must(t, f.Run())
}

// An entry that another process commits in the middle of an "rm -r" stays.
func TestCommitDuringRemoval(t *testing.T) {
	m := testMount(t)
	f := m.fill(t, "a", mib)
	folder := openFD(t, f.Entry(), unix.O_RDONLY|unix.O_DIRECTORY)
	must(t, unix.Unlinkat(folder, "structure.pkl", 0))
	start(t, 0, "fill", m.dir, "a", strconv.FormatInt(mib, 10)).finish()
	wantErrno(t, unix.Unlinkat(folder, "manifest", 0), syscall.ENOENT) // as in any folder that was replaced
	must(t, unix.Close(folder))
	wantErrno(t, unix.Rmdir(f.Entry()), syscall.ENOTEMPTY)
	got, err := os.ReadFile(fstest.Arena(f.Entry()))
	must(t, err)
	if int64(len(got)) != mib {
		t.Errorf("the new entry has %d bytes", len(got))
	}
	must(t, os.RemoveAll(f.Entry()))
}

func attr(t *testing.T, path, name string) string {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Getxattr(path, overmindfs.AttrPrefix+name, buf)
	must(t, err)
	return string(buf[:n])
}

func TestAttributes(t *testing.T) {
	m := testMount(t)
	f := m.fill(t, "a", mib)
	for name, want := range map[string]string{"pinned": "0", "hits": "0", "leases": "0", "lease_pids": ""} {
		if got := attr(t, f.Entry(), name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	bytes, _ := strconv.ParseInt(attr(t, f.Entry(), "bytes"), 10, 64)
	if bytes < mib+fstest.StructureNbytes {
		t.Errorf("bytes %d", bytes)
	}
	_, err := os.ReadFile(filepath.Join(f.Entry(), "structure.pkl"))
	must(t, err)
	if got := attr(t, f.Entry(), "hits"); got != "1" {
		t.Errorf("hits %s", got)
	}
	set := func(name, value string) error { return unix.Setxattr(f.Entry(), name, []byte(value), 0) }
	must(t, set(overmindfs.AttrPinned, "1"))
	if got := attr(t, f.Entry(), "pinned"); got != "1" {
		t.Errorf("pinned %s", got)
	}
	wantErrno(t, set(overmindfs.AttrPinned, "yes"), syscall.EINVAL)
	wantErrno(t, set(overmindfs.AttrHits, "9"), syscall.EPERM)
	wantErrno(t, set("user.other", "9"), syscall.ENOTSUP)
	wantErrno(t, unix.Removexattr(f.Entry(), overmindfs.AttrPinned), syscall.EPERM)
	_, err = unix.Getxattr(f.Entry(), "user.overmind.nothing", make([]byte, 10))
	wantErrno(t, err, syscall.ENODATA)
	_, err = unix.Getxattr(f.Entry(), overmindfs.AttrBytes, make([]byte, 1))
	wantErrno(t, err, syscall.ERANGE)
	n, err := unix.Listxattr(f.Entry(), nil)
	must(t, err)
	list := make([]byte, n)
	_, err = unix.Listxattr(f.Entry(), list)
	must(t, err)
	if want := "user.overmind.pinned\x00user.overmind.hits\x00"; string(list[:len(want)]) != want {
		t.Errorf("list %q", list)
	}
	must(t, os.RemoveAll(f.Entry()))
}

// Nothing of a pinned entry goes to make room.
func TestPinnedStays(t *testing.T) {
	m := testMount(t, func(_ *overmindfs.Options, o *store.Options) { o.MaxBytes = uint64(10 * mib) })
	f := m.fill(t, "a", 6*mib)
	must(t, unix.Setxattr(f.Entry(), overmindfs.AttrPinned, []byte("1"), 0))
	b := fstest.Fill{Root: m.dir, ID: "b", Size: 6 * mib}
	wantErrno(t, b.Stage(), syscall.ENOSPC)
	must(t, os.RemoveAll(b.Staging()))
	must(t, unix.Setxattr(f.Entry(), overmindfs.AttrPinned, []byte("0"), 0))
	must(t, b.Run())
}
