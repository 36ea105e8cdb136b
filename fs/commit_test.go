package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

func modes(t *testing.T, test func(t *testing.T, m *mounted)) {
	t.Run("passthrough", func(t *testing.T) {
		m := testMount(t)
		m.needPassthrough(t)
		test(t, m)
	})
	t.Run("daemon", func(t *testing.T) { test(t, testMount(t, withoutPassthrough)) })
}

func openFD(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	must(t, err)
	return fd
}

func TestPublishedIsReadOnly(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := m.fill(t, "a", mib)
		for _, name := range []string{"manifest", "structure.pkl", "manifest.json", "tensors/model.safetensors", "storages/0.all"} {
			path := filepath.Join(f.Entry(), name)
			for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR | unix.O_TRUNC, unix.O_RDWR | unix.O_CREAT} {
				fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
				if err == nil {
					_ = unix.Close(fd)
				}
				wantErrno(t, err, syscall.EROFS)
			}
			wantErrno(t, os.Chmod(path, 0o600), syscall.EROFS)
			wantErrno(t, unix.Chown(path, 1, 1), syscall.EROFS)
			wantErrno(t, unix.Truncate(path, 0), syscall.EROFS)
			var st unix.Stat_t
			must(t, unix.Stat(path, &st))
			if st.Mode != unix.S_IFREG|0o444 {
				t.Errorf("%s: mode %o", name, st.Mode)
			}
		}
		for _, folder := range []string{"", "tensors", "storages"} {
			path := filepath.Join(f.Entry(), folder)
			wantErrno(t, os.Chmod(path, 0o700), syscall.EROFS)
			_, err := unix.Open(filepath.Join(path, "new.safetensors"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
			wantErrno(t, err, syscall.EROFS)
		}
		wantErrno(t, unix.Mkdir(filepath.Join(f.Entry(), "x"), 0o755), syscall.EROFS)
	})
}

func TestEarlyCommitIsRefused(t *testing.T) {
	m := testMount(t, func(_ *overmindfs.Options, o *store.Options) { o.CommitWait = 50 * time.Millisecond })
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
	must(t, f.Stage())
	fd := openFD(t, fstest.Arena(f.Staging()), unix.O_RDWR)
	wantErrno(t, f.Commit(), syscall.ETXTBSY)
	_, err := os.Stat(f.Entry())
	wantErrno(t, err, syscall.ENOENT)
	must(t, unix.Close(fd))
	must(t, f.Commit())

	// A mapping that outlives its handle.
	c := start(t, 0, "keepmapped", m.dir, "b", fmt.Sprint(mib))
	if got := c.line(); got != "mapped" {
		t.Fatal(got)
	}
	b := fstest.Fill{Root: m.dir, ID: "b", Size: mib}
	err = b.Commit()
	if m.Status().Passthrough.Active {
		wantErrno(t, err, syscall.EBUSY) // the kernel knows the mapping
	} else {
		wantErrno(t, err, syscall.ETXTBSY) // the mapping keeps the FUSE handle
	}
	c.finish()
	must(t, b.Commit())
}

// The close of a client comes before the RELEASE that the daemon gets; a commit right after it must not fail.
func TestCommitRightAfterClose(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		for i := range 200 {
			must(t, fstest.Fill{Root: m.dir, ID: fmt.Sprint("e", i%3), Size: 64 << 10}.Run())
		}
	})
}

func TestBadCommits(t *testing.T) {
	m := testMount(t)
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib, Change: func(x *schema.Manifest) { x.Storages[0].Nbytes++ }}
	must(t, f.Stage())
	wantErrno(t, f.Commit(), syscall.EINVAL)
	must(t, os.Remove(f.Staging()))
	f.Change = nil
	must(t, f.Stage())
	for to, want := range map[string]syscall.Errno{
		m.path("pipelines", "b"):              syscall.EPERM,
		m.path("staging", "b"):                syscall.EPERM,
		m.path("locks", "a"):                  syscall.ENOTDIR,
		m.path("a"):                           syscall.EXDEV,
		filepath.Join(f.Staging(), "tensors"): syscall.EINVAL, // into itself, says the kernel
	} {
		if err := unix.Rename(f.Staging(), to); err != want {
			t.Errorf("rename to %s: %v, want %v", to, err, want)
		}
	}
	wantErrno(t, unix.Rename(fstest.Arena(f.Staging()), m.path("x")), syscall.EPERM)
	must(t, f.Commit())
	wantErrno(t, unix.Rename(f.Entry(), f.Staging()), syscall.EPERM)
	wantErrno(t, unix.Rename(filepath.Join(f.Entry(), "manifest"), m.path("x")), syscall.EPERM)

	must(t, f.Stage())
	wantErrno(t, unix.Renameat2(unix.AT_FDCWD, f.Staging(), unix.AT_FDCWD, f.Entry(), unix.RENAME_NOREPLACE), syscall.EEXIST)
	wantErrno(t, unix.Renameat2(unix.AT_FDCWD, f.Staging(), unix.AT_FDCWD, f.Entry(), unix.RENAME_EXCHANGE), syscall.EINVAL)
	must(t, f.Commit())
}

func TestPlacesWhereNothingCanBeMade(t *testing.T) {
	m := testMount(t)
	for _, path := range []string{m.path("x"), m.path("pipelines", "x"), m.path("locks", "x.d")} {
		if err := unix.Mkdir(path, 0o755); err != syscall.EPERM && err != syscall.EEXIST {
			t.Errorf("mkdir %s: %v", path, err)
		}
	}
	wantErrno(t, unix.Mkdir(m.path("staging", ".x"), 0o755), syscall.EINVAL)
	_, err := unix.Open(m.path("locks", "bad name"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	wantErrno(t, err, syscall.EINVAL)
	_, err = unix.Open(m.path("x"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	wantErrno(t, err, syscall.EPERM)
	wantErrno(t, os.Remove(m.path("status.json")), syscall.EPERM)
	wantErrno(t, unix.Rmdir(m.path("pipelines")), syscall.EPERM)
	wantErrno(t, unix.Symlink("a", m.path("x")), syscall.EPERM)
}

func TestArenaSize(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		must(t, unix.Mkdir(m.path("staging", "a"), 0o755))
		must(t, unix.Mkdir(m.path("staging", "a", "tensors"), 0o755))
		wantErrno(t, unix.Mkdir(m.path("staging", "a"), 0o755), syscall.EEXIST)
		path := fstest.Arena(m.path("staging", "a"))
		fd := openFD(t, path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		wantErrno(t, unix.Ftruncate(fd, 257*mib), syscall.ENOSPC)
		must(t, unix.Ftruncate(fd, mib))
		must(t, unix.Ftruncate(fd, mib))
		wantErrno(t, unix.Ftruncate(fd, 2*mib), syscall.EINVAL)
		if _, err := unix.Pwrite(fd, []byte("xy"), mib-1); err == nil {
			var st unix.Stat_t // a short write is right too, growth is not
			must(t, unix.Fstat(fd, &st))
			if st.Size != mib {
				t.Errorf("a write grew the arena to %d", st.Size)
			}
		}
		must(t, unix.Close(fd))
		must(t, unix.Rmdir(m.path("staging", "a")))
		_, err := os.Stat(path)
		wantErrno(t, err, syscall.ENOENT)
	})
}

func TestReservation(t *testing.T) {
	m := testMount(t)
	idle := m.fill(t, "idle", 200*mib)
	staging := m.path("staging", "a")
	must(t, unix.Mkdir(staging, 0o755))
	reserve := func(path, value string) error { return unix.Setxattr(path, overmindfs.AttrReserve, []byte(value), 0) }
	wantErrno(t, reserve(staging, strconv.FormatInt(300*mib, 10)), syscall.ENOSPC)
	for _, value := range []string{"", "-1", "many", "1.5", "99999999999999999999"} {
		wantErrno(t, reserve(staging, value), syscall.EINVAL)
	}
	wantErrno(t, reserve(idle.Entry(), "1"), syscall.EROFS)
	if _, err := os.Stat(idle.Entry()); err != nil {
		t.Errorf("a refused reservation evicted: %v", err)
	}
	must(t, reserve(staging, strconv.FormatInt(100*mib, 10)))
	_, err := os.Stat(idle.Entry())
	wantErrno(t, err, syscall.ENOENT)
	must(t, unix.Rmdir(staging))
	m.fill(t, "b", 250*mib)
}

// A read handle from the staging stays valid across the commit and is a lease.
func TestReadHandleAcrossCommit(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
		must(t, f.Stage())
		fd := openFD(t, fstest.Arena(f.Staging()), unix.O_RDONLY)
		must(t, f.Commit())
		if n := m.store.Stats().Leases; n != 1 {
			t.Errorf("%d leases", n)
		}
		buf := make([]byte, 16)
		if _, err := unix.Pread(fd, buf, mib-16); err != nil || string(buf) != string(fstest.Content(mib)[mib-16:]) {
			t.Errorf("read %x, %v", buf, err)
		}
		must(t, unix.Close(fd))
		eventually(t, "no lease", func() bool { return m.store.Stats().Leases == 0 })
	})
}
