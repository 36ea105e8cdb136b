package fs_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

// controlDir makes the socket in a folder.
func controlDir(dir string) func(*overmindfs.Options, *store.Options) {
	return func(o *overmindfs.Options, _ *store.Options) { o.ControlDir = dir }
}

// beside mounts on the folder mnt of a new one, with the socket in another folder of it.
func beside(t *testing.T, base string) *mounted {
	t.Helper()
	return testMount(t, func(o *overmindfs.Options, so *store.Options) {
		must(t, os.Remove(o.Dir))
		o.Dir = filepath.Join(base, "mnt")
		must(t, os.Mkdir(o.Dir, 0o755))
		controlDir(filepath.Join(base, "control"))(o, so)
	})
}

func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "overmind-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// In a place that another name leads to, as in a container, the link leads to the same socket.
func TestSocketBesideTheMount(t *testing.T) {
	base := shortFolder(t)
	m := beside(t, base)
	m.needControl(t)
	f := m.fill(t, "a", mib)
	inode := inodeOf(t, fstest.Arena(f.Entry()))

	target, err := os.Readlink(m.path("control"))
	must(t, err)
	socket, err := overmindfs.ControlSocket(m.dir)
	must(t, err)
	if !strings.HasPrefix(target, "../control/") || socket != filepath.Join(m.dir, target) {
		t.Errorf("%s leads to %s", target, socket)
	}
	other := filepath.Join(shortFolder(t), "cache")
	must(t, os.Symlink(base, other))
	for _, root := range []string{m.dir, filepath.Join(other, "mnt")} {
		fd, err := passedBy(root+"/"+target, false, "a", inode)
		must(t, err)
		must(t, unix.Close(fd))
	}
	// The symbolic link itself, as a client would that does not read it first.
	fd, err := passedBy(filepath.Join(other, "mnt", "control"), false, "a", inode)
	must(t, err)
	must(t, unix.Close(fd))
}

func TestSocketElsewhere(t *testing.T) {
	folder := filepath.Join(shortFolder(t), "sockets")
	m := testMount(t, controlDir(folder))
	m.needControl(t)
	target, err := os.Readlink(m.path("control"))
	must(t, err)
	// The parent of the mount is /tmp, or what TMPDIR says, and the folder may lie below it.
	want := folder
	if rel, err := filepath.Rel(filepath.Dir(m.dir), folder); err == nil && filepath.IsLocal(rel) {
		want = filepath.Join("..", rel)
	}
	if !strings.HasPrefix(target, want+"/overmind-fs-") {
		t.Errorf("%s, want it in %s", target, want)
	}
	_, err = m.Unmount()
	must(t, err)
	if names, err := os.ReadDir(folder); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// What somebody has asked for is there, or there is no mount.
func TestNoMountWithoutTheChosenFolder(t *testing.T) {
	base := shortFolder(t)
	long := filepath.Join(base, strings.Repeat("x", 90))
	open := filepath.Join(base, "open")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	for folder, want := range map[string]string{
		long: "bytes, and an address holds 107", open: "others can write into it", base + "/mnt/c": "hides it",
	} {
		dir := filepath.Join(base, "mnt")
		must(t, os.MkdirAll(dir, 0o755))
		s := store.New(store.Options{MaxBytes: uint64(mib), OS: store.NewOS(), Logger: slog.New(slog.DiscardHandler)})
		m, err := overmindfs.New(overmindfs.Options{
			Dir: dir, Store: s, Logger: slog.New(slog.DiscardHandler), UID: uint32(os.Geteuid()), FDPassing: true, ControlDir: folder,
		})
		if err == nil {
			_, err = m.Unmount()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s: %v, want %q", folder, err, want)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
			t.Errorf("%s: %v, %v", dir, names, err)
		}
		s.Close()
	}
	if names, err := os.ReadDir(long); err != nil && !errors.Is(err, os.ErrNotExist) || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func TestControlTarget(t *testing.T) {
	for _, c := range [][3]string{
		{"/var/o/mnt", "/var/o/control/x/control", "../control/x/control"},
		{"/var/o/mnt", "/var/o/x/control", "../x/control"},
		{"/var/o/mnt", "/var/other/x/control", "/var/other/x/control"},
		{"/var/o/mnt", "/var/o-2/x/control", "/var/o-2/x/control"},
		{"/mnt", "/run/x/control", "/run/x/control"},
	} {
		if got := overmindfs.ControlTarget(c[0], c[1]); got != c[2] {
			t.Errorf("%v: %s", c, got)
		}
	}
}
