package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
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

// listen makes a folder in the first base where that works, and a socket in it.
func listen(bases []string, a Audience) (l *net.UnixListener, path string, err error) {
	var failures []error
	for _, base := range bases {
		if l, path, err = listenIn(base, a); err == nil {
			return l, path, nil
		}
		failures = append(failures, err)
	}
	return nil, "", errors.Join(failures...)
}

func listenIn(base string, a Audience) (l *net.UnixListener, path string, err error) {
	removeStale(base)
	dir, err := os.MkdirTemp(base, fmt.Sprintf("%s%d-", folderName, os.Getpid()))
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			if l != nil {
				_ = l.Close()
			}
			_ = os.RemoveAll(dir)
		}
	}()
	// The socket gets its name when everything about it is right: one that has its name and refuses is a dead daemon's.
	early, path := filepath.Join(dir, earlyName), filepath.Join(dir, socketName)
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > most {
		return nil, "", fmt.Errorf("%s: %d bytes, and an address holds %d: nobody could connect to it", path, len(path), most)
	}
	l, err = net.ListenUnix(network, &net.UnixAddr{Name: early, Net: network})
	if err != nil {
		return nil, "", err
	}
	l.SetUnlinkOnClose(false)
	socketMode, folderMode := os.FileMode(0o600), os.FileMode(0o700)
	if a.foreign() {
		folderMode = 0o711
	}
	if a.Everyone {
		socketMode = 0o666
	} else if a.foreign() {
		if err = os.Chown(early, int(a.UID), int(a.GID)); err != nil {
			return l, "", err
		}
	}
	if err = os.Chmod(early, socketMode); err != nil {
		return l, "", err
	}
	if err = os.Chmod(dir, folderMode); err != nil {
		return l, "", err
	}
	return l, path, os.Rename(early, path)
}

// removeStale removes what daemons of this user that were killed have left in base.
func removeStale(base string) {
	names, err := filepath.Glob(filepath.Join(base, folderName+"*"))
	if err != nil {
		return
	}
	for _, dir := range names {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !ours(info) {
			continue
		}
		path := filepath.Join(dir, socketName)
		c, err := net.DialTimeout(network, path, dialWait)
		switch {
		case err == nil:
			_ = c.Close()
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT) && time.Since(info.ModTime()) > unfinished:
			_ = os.Remove(path)
			_ = os.Remove(filepath.Join(dir, earlyName))
			_ = os.Remove(dir)
		}
	}
}

func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
