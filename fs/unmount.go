package fs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Detach unmounts path. A lazy detach also succeeds while files are open: the mount disappears from the tree at once
// and goes when the last of them is closed. A plain one fails with unix.EBUSY then.
// The path is absolute and without symbolic links, as MountPoint returns it.
func Detach(path string, lazy bool) error {
	at, err := openPlace(path)
	if err != nil {
		return fmt.Errorf("umount %s: %w", path, err)
	}
	defer at.close()
	return detachAt(at, path, lazy)
}

func detachAt(at *place, path string, lazy bool) error {
	flags := 0
	if lazy {
		flags = unix.MNT_DETACH
	}
	err := at.unmount(flags)
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
