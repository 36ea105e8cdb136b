package fs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// moveMountBeneath is MOVE_MOUNT_BENEATH, of Linux 6.5.
const moveMountBeneath = 0x200

// ErrNoBeneath is returned when the kernel cannot put a mount beneath another one.
var ErrNoBeneath = errors.New("the kernel does not mount beneath this mount (it can since Linux 6.5)")

// mountDetached makes the mount without a place, and returns the path by which go-fuse serves it.
func (m *Mount) mountDetached(opts Options, fuseOpts *fuse.MountOptions) (string, error) {
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("take over the mount %s: only root can", opts.Dir)
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("/dev/fuse: %w", err)
	}
	params := []string{
		"source=" + fuseOpts.FsName, "subtype=" + fuseOpts.Name, fmt.Sprintf("fd=%d", dev), "rootmode=40000",
		fmt.Sprintf("max_read=%d", fuseOpts.MaxWrite),
	}
	for _, id := range []string{"user_id", "group_id"} {
		if !slices.ContainsFunc(fuseOpts.Options, func(o string) bool { return strings.HasPrefix(o, id+"=") }) {
			params = append(params, id+"=0")
		}
	}
	params = append(params, fuseOpts.Options...)
	if fuseOpts.AllowOther {
		params = append(params, "allow_other")
	}
	if m.detached, err = newMount("fuse", params); err != nil {
		_ = unix.Close(dev)
		return "", fmt.Errorf("new mount for %s: %w", opts.Dir, err)
	}
	fuseOpts.DirectMountStrict = false // it would not look at the descriptor
	return "/dev/fd/" + strconv.Itoa(dev), nil
}

// newMount makes a mount in no place.
func newMount(kind string, params []string) (int, error) {
	config, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer func() { _ = unix.Close(config) }()
	for _, p := range params {
		name, value, hasValue := strings.Cut(p, "=")
		if hasValue {
			err = unix.FsconfigSetString(config, name, value)
		} else {
			err = unix.FsconfigSetFlag(config, name)
		}
		if err != nil {
			return -1, fmt.Errorf("fsconfig %s: %w", p, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, fmt.Errorf("fsconfig: %w", err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}

// closeDetached lets go of the mount: it disappears, unless it has got a place.
func (m *Mount) closeDetached() {
	if m.detached >= 0 {
		_ = unix.Close(m.detached)
		m.detached = -1
	}
}

// exchange puts a mount in the place of this one: beneath it first, and then that one is detached, so that there
// is always one to be found.
func (m *Mount) exchange(mount int) error {
	err := m.at.beneath(mount)
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s: %w: %w", m.dir, ErrNoBeneath, err)
	case err != nil:
		return fmt.Errorf("mount beneath %s: %w", m.dir, err)
	}
	return m.detach(true)
}
