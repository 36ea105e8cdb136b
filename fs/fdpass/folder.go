package fdpass

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	network    = "unixpacket" // a message is a frame, whole or not there; descriptors belong to a message
	folderName = "overmind-fs-"
	socketName = "control"
	earlyName  = "new"
	// unfinished is the age from which on a folder without a socket is not that of a daemon that is starting.
	unfinished = time.Minute
	// dialWait is how long a look at another daemon's socket may take.
	dialWait = time.Second
)

// Audience says who has to reach the socket.
type Audience struct {
	Everyone bool
	UID, GID uint32 // whom the socket belongs to; only root can give it away
}

// foreign says whether others than this process's user must pass the folder.
func (a Audience) foreign() bool { return a.Everyone || int(a.UID) != os.Geteuid() }

// bases are the folders in which a runtime folder can be made, best first.
func bases(a Audience) []string {
	var out []string
	if os.Geteuid() == 0 {
		out = append(out, "/run")
	} else if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !a.foreign() {
		out = append(out, dir) // nobody else can look into it
	}
	return append(out, os.TempDir())
}

// folder is a new folder with a socket in it. Both it and what it lies in are held open: where others may rename things
// there, a path could lead to somebody else's files.
type folder struct {
	base, dir *os.File
	name      string // of dir in base
}

// listen makes a folder in the first base where that works, and a socket in it.
func listen(bases []string, a Audience) (l *net.UnixListener, f *folder, err error) {
	var failures []error
	for _, base := range bases {
		if l, f, err = listenIn(base, a); err == nil {
			return l, f, nil
		}
		failures = append(failures, err)
	}
	return nil, nil, errors.Join(failures...)
}

func listenIn(base string, a Audience) (l *net.UnixListener, f *folder, err error) {
	above, err := os.Open(base)
	if err != nil {
		return nil, nil, err
	}
	removeStale(above)
	made, err := newFolder(above)
	if err != nil {
		_ = above.Close()
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			if l != nil {
				_ = l.Close()
			}
			made.remove()
		}
	}()
	if path, most := made.path(), len(syscall.RawSockaddrUnix{}.Path)-1; len(path) > most {
		return nil, nil, fmt.Errorf("%s: %d bytes, and an address holds %d: nobody could connect to it", path, len(path), most)
	}
	// The socket gets its name when everything about it is right: one that has its name and refuses is a dead daemon's.
	l, err = net.ListenUnix(network, &net.UnixAddr{Name: inside(made.dir, earlyName), Net: network})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, made, made.open(a)
}

// newFolder makes a folder that only this user can enter. It closes nothing.
func newFolder(base *os.File) (*folder, error) {
	const tries = 100
	for range tries {
		name := fmt.Sprintf("%s%d-%d", folderName, os.Getpid(), rand.Uint32())
		err := unix.Mkdirat(int(base.Fd()), name, 0o700)
		if errors.Is(err, syscall.EEXIST) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("mkdir %s: %w", filepath.Join(base.Name(), name), err)
		}
		dir, err := openOwn(base, name)
		if err != nil {
			_ = unix.Unlinkat(int(base.Fd()), name, unix.AT_REMOVEDIR)
			return nil, err
		}
		return &folder{base, dir, name}, nil
	}
	return nil, fmt.Errorf("%s: no free name", base.Name())
}

// open lets the audience in and gives the socket its name.
func (f *folder) open(a Audience) error {
	dir := int(f.dir.Fd())
	socketMode, folderMode := uint32(0o600), uint32(0o700)
	if a.foreign() {
		folderMode = 0o711
	}
	if a.Everyone {
		socketMode = 0o666
	} else if a.foreign() {
		if err := unix.Fchownat(dir, earlyName, int(a.UID), int(a.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("chown of the socket: %w", err)
		}
	}
	if err := unix.Fchmodat(dir, earlyName, socketMode, 0); err != nil {
		return fmt.Errorf("chmod of the socket: %w", err)
	}
	if err := unix.Fchmod(dir, folderMode); err != nil {
		return fmt.Errorf("chmod of %s: %w", filepath.Dir(f.path()), err)
	}
	if err := unix.Renameat(dir, earlyName, dir, socketName); err != nil {
		return fmt.Errorf("rename of the socket: %w", err)
	}
	return nil
}

// path is where clients find the socket.
func (f *folder) path() string { return filepath.Join(f.base.Name(), f.name, socketName) }

// remove may be called once.
func (f *folder) remove() {
	empty(f.base, f.dir, f.name)
	_ = f.dir.Close()
	_ = f.base.Close()
}

// inside is a path into an open folder, for calls that take no descriptor.
func inside(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// empty removes what this package puts into a folder, and the folder.
func empty(base, dir *os.File, name string) {
	for _, file := range []string{socketName, earlyName} {
		_ = unix.Unlinkat(int(dir.Fd()), file, 0)
	}
	_ = unix.Unlinkat(int(base.Fd()), name, unix.AT_REMOVEDIR)
}

// openOwn opens a folder of this user, and no symbolic link to one.
func openOwn(base *os.File, name string) (*os.File, error) {
	path := filepath.Join(base.Name(), name)
	fd, err := unix.Openat(int(base.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	info, err := dir.Stat()
	if err == nil && !ours(info) {
		err = fmt.Errorf("%s: %w: it belongs to somebody else", path, os.ErrPermission)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// removeStale removes what daemons of this user that were killed have left in base.
func removeStale(base *os.File) {
	names, err := base.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		if !strings.HasPrefix(name, folderName) {
			continue
		}
		if dir, err := openOwn(base, name); err == nil {
			if stale(dir) {
				empty(base, dir, name)
			}
			_ = dir.Close()
		}
	}
}

func stale(dir *os.File) bool {
	c, err := net.DialTimeout(network, inside(dir, socketName), dialWait)
	if err == nil {
		_ = c.Close()
		return false
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	info, statErr := dir.Stat()
	return errors.Is(err, syscall.ENOENT) && statErr == nil && time.Since(info.ModTime()) > unfinished
}

func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
