package fdpass

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shortDir is a folder whose name leaves room for that of a socket; t.TempDir has the name of the test in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fdpass-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

func TestModes(t *testing.T) {
	cases := map[string]struct {
		audience       Audience
		folder, socket os.FileMode
	}{
		"own":      {own(), 0o700, 0o600},
		"everyone": {Audience{Everyone: true, UID: uint32(os.Geteuid())}, 0o711, 0o666},
	}
	if os.Geteuid() == 0 {
		cases["a user"] = struct {
			audience       Audience
			folder, socket os.FileMode
		}{Audience{UID: 65534, GID: 65534}, 0o711, 0o600}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			fx := serve(t, c.audience)
			folder, err := os.Stat(filepath.Dir(fx.Path()))
			must(t, err)
			socket, err := os.Stat(fx.Path())
			must(t, err)
			if folder.Mode().Perm() != c.folder || socket.Mode().Perm() != c.socket {
				t.Errorf("folder %v, socket %v", folder.Mode(), socket.Mode())
			}
			if uid := socket.Sys().(*syscall.Stat_t).Uid; uid != c.audience.UID {
				t.Errorf("the socket belongs to %d", uid)
			}
		})
	}
}

// What a killed daemon leaves goes at the next start; what a living one has, and what is no daemon's, stays.
func TestStaleFoldersAreRemoved(t *testing.T) {
	base := shortDir(t)
	dead := filepath.Join(base, folderName+"1-dead")
	must(t, os.Mkdir(dead, 0o700))
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: filepath.Join(dead, socketName), Net: network})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	begun := filepath.Join(base, folderName+"2-begun")
	must(t, os.Mkdir(begun, 0o700))
	half := filepath.Join(base, folderName+"4-half") // killed while it started, long ago
	must(t, os.Mkdir(half, 0o700))
	must(t, os.WriteFile(filepath.Join(half, earlyName), nil, 0o600))
	must(t, os.Chtimes(half, time.Time{}, time.Now().Add(-2*unfinished)))
	other := filepath.Join(base, folderName+"3-file")
	must(t, os.WriteFile(other, nil, 0o600))

	living, f, err := listen([]string{base}, own())
	must(t, err)
	defer func() { _ = living.Close() }()
	second, _, err := listen([]string{base}, own())
	must(t, err)
	_ = second.Close()
	for _, gone := range []string{dead, half} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	for _, kept := range []string{begun, other, f.path()} {
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
	}
}

func TestNextBaseIsTried(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	must(t, os.Mkdir(long, 0o700))
	good := shortDir(t)
	l, f, err := listen([]string{"/nonexistent", long, good}, own())
	must(t, err)
	_ = l.Close()
	path := f.path()
	if !strings.HasPrefix(path, good) {
		t.Errorf("in %s", path)
	}
	if names, _ := os.ReadDir(long); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	if _, _, err := listen([]string{"/nonexistent", long}, own()); err == nil {
		t.Error("no error")
	}
}

// Whatever the length of the base, a socket that is there can be connected to under its final name.
func TestEverySocketCanBeReached(t *testing.T) {
	short, refused := shortDir(t), 0
	for n := range 80 {
		base := filepath.Join(short, strings.Repeat("x", n))
		must(t, os.MkdirAll(base, 0o700))
		l, f, err := listen([]string{base}, own())
		if err != nil {
			if refused++; !strings.Contains(err.Error(), base) {
				t.Errorf("the error does not name the folder: %v", err)
			}
			continue
		}
		path := f.path()
		c, err := net.DialTimeout(network, path, dialWait)
		if err != nil {
			t.Errorf("%d bytes: %v", len(path), err)
		} else {
			_ = c.Close()
		}
		_ = l.Close()
	}
	if refused == 0 {
		t.Error("no path was too long")
	}
}
