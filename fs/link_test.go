package fs_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
)

func (m *mounted) fillLinked(t *testing.T, id string, from fstest.Fill) fstest.Fill {
	t.Helper()
	f := fstest.Fill{Root: m.dir, ID: id, Size: from.Size, From: from.Entry()}
	must(t, f.Run())
	return f
}

func wantContent(t *testing.T, f fstest.Fill) {
	t.Helper()
	for _, path := range []string{fstest.Arena(f.Entry()), filepath.Join(f.Entry(), "storages", "0.all")} {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, fstest.Content(f.Size)) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
}

// Two entries, one memory: each is read, mapped, evicted as if it were alone.
func TestLinkedArena(t *testing.T) {
	for _, first := range []int{0, 1} {
		modes(t, func(t *testing.T, m *mounted) {
			a := m.fill(t, "a", 4*mib)
			b := m.fillLinked(t, "b", a)
			both := []fstest.Fill{a, b}
			if inodeOf(t, fstest.Arena(a.Entry())) == inodeOf(t, fstest.Arena(b.Entry())) {
				t.Error("one inode")
			}
			for _, f := range both {
				wantContent(t, f)
				if got := attr(t, f.Entry(), "shared"); got != fmt.Sprint(4*mib) {
					t.Errorf("shared %s", got)
				}
			}
			if s := m.Status().Bytes; s.Shared != uint64(4*mib) || s.Cached > uint64(5*mib) {
				t.Errorf("%+v", s)
			}
			mapped := []*child{start(t, 0, "map", fstest.Arena(a.Entry())), start(t, 0, "map", fstest.Arena(b.Entry()))}
			sums := []string{mapped[0].line(), mapped[1].line()}
			if sums[0] != sums[1] {
				t.Errorf("mapped %s and %s", sums[0], sums[1])
			}
			must(t, unix.Rmdir(both[first].Entry()))
			left := both[1-first]
			wantContent(t, left)
			if s := m.Status().Bytes; s.Shared != 0 || s.Draining != 0 {
				t.Errorf("%+v", s)
			}
			if got := attr(t, left.Entry(), "leases"); got != "1" {
				t.Errorf("leases %s", got)
			}
			mapped[first].kill()
			must(t, unix.Rmdir(left.Entry()))
			if s := m.Status().Bytes; s.Cached != 0 || s.Draining != uint64(4*mib) {
				t.Errorf("%+v", s)
			}
			if got := mapped[1-first].finish(); got != sums[0] {
				t.Error("the mapping changed")
			}
			eventually(t, "drained", func() bool { return m.Status().Bytes.Draining == 0 })
		})
	}
}

// The memory that the socket passes is the same for both.
func TestLinkedArenaIsPassed(t *testing.T) {
	m := testMount(t, withoutPassthrough)
	m.needControl(t)
	a := m.fill(t, "a", mib)
	b := m.fillLinked(t, "b", a)
	var st [2]unix.Stat_t
	for i, f := range []fstest.Fill{a, b} {
		fd, err := passed(m.dir, false, f.ID, inodeOf(t, fstest.Arena(f.Entry())))
		must(t, err)
		must(t, unix.Fstat(fd, &st[i]))
		_, err = unix.Pwrite(fd, []byte("x"), 0)
		wantErrno(t, err, syscall.EBADF)
		must(t, unix.Close(fd))
	}
	if st[0].Ino != st[1].Ino {
		t.Error("two memfds")
	}
}

func TestKilledFillerLeavesWhatItLinked(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		a := m.fill(t, "a", mib)
		c := start(t, 0, "stage", m.dir, "b", fmt.Sprint(mib), a.Entry())
		if got := c.line(); got != "staged" {
			t.Fatal(got)
		}
		// Nobody can write what is shared, though it lies in a staging.
		path := fstest.Arena(m.path("staging", "b"))
		fd := openFD(t, path, unix.O_RDWR)
		_, err := unix.Pwrite(fd, []byte("x"), 0)
		wantErrno(t, err, syscall.EPERM)
		must(t, unix.Close(fd))
		wantErrno(t, unix.Truncate(path, 2*mib), syscall.EINVAL)
		c.kill()
		eventually(t, "staging dropped", func() bool { return m.store.Stats().Stagings == 0 })
		if s := m.Status().Bytes; s.Staging != 0 || s.Draining != 0 || s.Cached < uint64(mib) {
			t.Errorf("%+v", s)
		}
		wantContent(t, a)
	})
}

func TestWhatCannotBeLinked(t *testing.T) {
	m := testMount(t)
	a := m.fill(t, "a", mib)
	staged := fstest.Fill{Root: m.dir, ID: "s", Size: mib}
	must(t, staged.Stage())
	open := openFD(t, fstest.Arena(a.Entry()), unix.O_RDONLY)
	defer func() { _ = unix.Close(open) }()
	gone := fmt.Sprintf("/proc/self/fd/%d", open)
	name := filepath.Join(staged.Staging(), "tensors", "x.safetensors")
	for _, c := range []struct {
		from, to string
		want     syscall.Errno
	}{
		{filepath.Join(a.Entry(), "manifest"), name, syscall.EPERM},
		{filepath.Join(a.Entry(), "storages", "0.all"), name, syscall.EPERM},
		{fstest.Arena(staged.Staging()), name, syscall.ENOENT},
		{fstest.Arena(a.Entry()), fstest.Arena(staged.Staging()), syscall.EEXIST},
		{fstest.Arena(a.Entry()), filepath.Join(staged.Staging(), "tensors", "x"), syscall.EINVAL},
		{fstest.Arena(a.Entry()), filepath.Join(staged.Staging(), "x.safetensors"), syscall.EPERM},
		{fstest.Arena(a.Entry()), filepath.Join(a.Entry(), "tensors", "x.safetensors"), syscall.EROFS},
		{fstest.Arena(a.Entry()), m.path("x.safetensors"), syscall.EPERM},
	} {
		if err := unix.Link(c.from, c.to); err != c.want {
			t.Errorf("link %s to %s: %v, want %v", c.from, c.to, err, c.want)
		}
	}
	// An open file is what is meant, not what its name leads to by now.
	must(t, a.Run())
	wantErrno(t, unix.Linkat(unix.AT_FDCWD, gone, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW), syscall.ENOENT)
}

// What a filler asks before it writes an arena that may be there already.
func TestArenasOfASize(t *testing.T) {
	m := testMount(t)
	a := m.fill(t, "a", 4*mib)
	b := m.fillLinked(t, "b", a)
	m.fill(t, "c", 2*mib)
	of := func(attr string) (string, error) {
		buf := make([]byte, 4096)
		n, err := unix.Getxattr(filepath.Join(m.dir, "pipelines"), attr, buf)
		return string(buf[:max(n, 0)]), err
	}
	want := func(bytes int64, lines string) {
		t.Helper()
		if got, err := of(fmt.Sprintf("user.overmind.arenas.%d", bytes)); err != nil || got != lines {
			t.Errorf("%d bytes: %q, %v; want %q", bytes, got, err, lines)
		}
	}
	size := 4 * mib
	want(size, "b/"+fstest.ArenaName+"\na/"+fstest.ArenaName+"\n")
	wantContent(t, a) // opens it: not a hit
	must(t, unix.Rmdir(b.Entry()))
	want(size, "a/"+fstest.ArenaName+"\n")
	want(size+1, "")
	for _, name := range []string{"", "-1", "x", "99999999999999999999"} {
		if got, err := of("user.overmind.arenas." + name); err != syscall.ENODATA {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if _, err := of("user.overmind.pinned"); err != syscall.ENODATA {
		t.Errorf("another attribute: %v", err)
	}
}
