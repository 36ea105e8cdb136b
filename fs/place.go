package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// mountPointAttr tells the loader that the empty folder, once its daemon is gone, is not to become a cache by itself.
const mountPointAttr = "user.overmind.mountpoint"

// place is where a mount is or will be: a name in a folder that is held open. Who may write above it can put a symbolic
// link or another folder there at any time, and would have root mount, mark or unmount something else by the path.
type place struct {
	name string

	mu     sync.Mutex // held while the descriptor is used
	parent *os.File   // guarded by mu: nil when closed
}

// openPlace opens the folder above an absolute path, in which no name may be a symbolic link.
func openPlace(path string) (*place, error) {
	fd, err := openWithoutLinks(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return &place{name: filepath.Base(path), parent: os.NewFile(uintptr(fd), filepath.Dir(path))}, nil
}

// openWithoutLinks opens name by name, since openat2 is forbidden in some containers and missing before Linux 5.6.
func openWithoutLinks(dir string) (int, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for name := range strings.SplitSeq(filepath.Clean(dir), "/") {
		if err != nil || name == "" {
			continue
		}
		above := fd
		fd, err = openFolder(above, name)
		_ = unix.Close(above)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func openFolder(above int, name string) (int, error) {
	fd, err := unix.Openat(above, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return -1, fmt.Errorf("%q has become a symbolic link, or is no folder: %w", name, err)
	}
	if err != nil {
		return -1, fmt.Errorf("%q: %w", name, err)
	}
	return fd, nil
}

// folder opens the folder that a mount will lie on.
func (p *place) folder() (fd int, err error) {
	err = p.use(func(parent int) error {
		fd, err = openFolder(parent, p.name)
		return err
	})
	return fd, err
}

// beneath puts a mount beneath the one that is there.
func (p *place) beneath(mount int) error {
	return p.use(func(parent int) error {
		return unix.MoveMount(mount, "", parent, p.name, unix.MOVE_MOUNT_F_EMPTY_PATH|moveMountBeneath)
	})
}

// unmount takes away the topmost mount.
func (p *place) unmount(flags int) error {
	return p.use(func(parent int) error {
		return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", parent, p.name), flags|unix.UMOUNT_NOFOLLOW)
	})
}

func (p *place) use(do func(parent int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parent == nil {
		return os.ErrClosed
	}
	return do(int(p.parent.Fd()))
}

func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parent != nil {
		_ = p.parent.Close()
		p.parent = nil
	}
}

// mark does what it can: some file systems have no attributes, and a folder may be somebody else's.
func mark(folder int) {
	_ = unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d", folder), mountPointAttr, []byte("1"), 0)
}
