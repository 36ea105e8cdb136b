package fs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoFusermount is returned when an unprivileged process needs the helper that mounts for it and does not find it.
var ErrNoFusermount = errors.New("fusermount3 was not found: install the package fuse3, or run as root")

// fusermount finds the helper that mounts and unmounts for unprivileged users.
func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount", "/bin/fusermount3", "/bin/fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoFusermount
}

// mayMount says what an unprivileged process lacks to mount, nil if nothing.
func mayMount() error {
	if _, err := fusermount(); err != nil {
		return err
	}
	// The helper opens it with the rights of its caller, and its message about that is lost in go-fuse.
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("/dev/fuse: %w; as root: chmod 666 /dev/fuse", err)
	}
	return nil
}

// Detach unmounts path. A lazy detach also succeeds while files are open: the mount disappears from the tree at once
// and goes when the last of them is closed. A plain one fails with unix.EBUSY then.
func Detach(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(path, flags)
	if err == nil || !errors.Is(err, unix.EPERM) || os.Geteuid() == 0 {
		if err != nil {
			return fmt.Errorf("umount %s: %w", path, err)
		}
		return nil
	}
	helper, err := fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "-q", path}
	if lazy {
		args = []string{"-u", "-z", "-q", path}
	}
	if out, err := exec.Command(helper, args...).CombinedOutput(); err != nil {
		if !lazy {
			return fmt.Errorf("%s: %w", strings.TrimSpace(string(out)), unix.EBUSY)
		}
		return fmt.Errorf("%s %s: %w: %s", helper, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
