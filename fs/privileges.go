package fs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fuseDevice is what the kernel and the daemon talk over.
const fuseDevice = "/dev/fuse"

// MissingError is what this process lacks to mount.
type MissingError struct {
	What string
	Fix  string // how to get it
}

func (e *MissingError) Error() string { return e.What + "; " + e.Fix }

// MayMount returns a *MissingError when this process cannot mount: by itself with CAP_SYS_ADMIN, or else through
// fusermount3. dir is where, "" when it does not matter.
func MayMount(dir string, allowOther bool) error {
	if self, err := os.Readlink("/proc/self"); err == nil && self != strconv.Itoa(os.Getpid()) {
		return &MissingError{
			"/proc is that of another PID namespace, in which clients cannot be told apart",
			"mount -t proc proc /proc, or unshare --mount-proc",
		}
	}
	if mountsItself() {
		return deviceOpens()
	}
	if os.Geteuid() == 0 {
		return &MissingError{
			"root lacks CAP_SYS_ADMIN here",
			"in a container: --cap-add SYS_ADMIN (Kubernetes: privileged: true); or as an ordinary user: fusermount3",
		}
	}
	helper, err := fusermount()
	if err != nil {
		return err
	}
	if err := deviceOpens(); err != nil {
		return err
	}
	if err := helperMounts(helper); err != nil {
		return err
	}
	if allowOther && !AllowsOther("/etc/fuse.conf") {
		return &MissingError{
			"--allow-other: /etc/fuse.conf has no user_allow_other", "as root: echo user_allow_other >>/etc/fuse.conf",
		}
	}
	if dir != "" && unix.Access(dir, unix.W_OK) != nil {
		return &MissingError{dir + ": this user may not write there", "chown or chmod it, or choose another folder"}
	}
	return nil
}

// mountsItself says whether mount(2) is allowed to this process in its user namespace.
func mountsItself() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the capabilities from 32 on are in the second one
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// deviceOpens opens the device, since a device cgroup may forbid what its mode allows. The helper opens it with the rights
// of its caller too, and its message about that is lost in go-fuse.
func deviceOpens() error {
	fd, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		return unix.Close(fd)
	}
	missing := &MissingError{fmt.Sprintf("%s: %v", fuseDevice, err), "as root: chmod 666 " + fuseDevice}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		missing.Fix = "as root: modprobe fuse; in a container: --device " + fuseDevice
	case errors.Is(err, unix.EPERM):
		missing.Fix = "in a container: --device " + fuseDevice
	case errors.Is(err, unix.EACCES) && inUserNamespace():
		missing.Fix = "as root of the machine: chmod 666 " + fuseDevice
	}
	return missing
}

// fusermount finds the helper that mounts and unmounts for unprivileged users.
func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount", "/bin/fusermount3", "/bin/fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{"fusermount3 was not found", "install the package fuse3, or run as root"}
}

// helperMounts says why the helper would not have the rights that it is there for.
func helperMounts(helper string) error {
	status, err := os.ReadFile("/proc/self/status")
	if err == nil && strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
		return &MissingError{
			"no_new_privs is set, so fusermount3 has no privileges either",
			"Kubernetes: allowPrivilegeEscalation: true; systemd: NoNewPrivileges=no",
		}
	}
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_ADMIN, 0, 0, 0); err == nil && has == 0 {
		return &MissingError{
			"CAP_SYS_ADMIN is not in the bounding set, so fusermount3 cannot have it", "in a container: --cap-add SYS_ADMIN",
		}
	}
	path, err := filepath.EvalSymlinks(helper)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if hasCapabilities, _ := unix.Getxattr(path, "security.capability", nil); hasCapabilities > 0 {
		return nil
	}
	if st.Mode&unix.S_ISUID == 0 || st.Uid != 0 {
		return &MissingError{
			path + " is not setuid root", fmt.Sprintf("as root: chown root %s && chmod 4755 %s", path, path),
		}
	}
	var system unix.Statfs_t
	if err := unix.Statfs(path, &system); err == nil && system.Flags&unix.ST_NOSUID != 0 {
		return &MissingError{path + " is on a file system that is mounted nosuid", "install the package fuse3 in another place"}
	}
	return nil
}

// helperFailed says why the helper did not mount. Its own words go to standard error, past go-fuse.
func helperFailed(err error) error {
	uid := os.Getuid()
	var unknown user.UnknownUserIdError
	if _, lookup := user.LookupId(strconv.Itoa(uid)); errors.As(lookup, &unknown) {
		return &MissingError{
			fmt.Sprintf("user %d has no name, and fusermount3 asks for one", uid), "as root: a line for it in /etc/passwd",
		}
	}
	return fmt.Errorf("%s; the lines before this one, on standard error or in the log, say why", strings.TrimSpace(err.Error()))
}

// AllowsOther says whether a file fuse.conf lets ordinary users share a mount with others.
func AllowsOther(conf string) bool {
	text, err := os.ReadFile(conf)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// inUserNamespace says whether this process is in a user namespace other than the initial one.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

// refused adds to an error of mount(2) what usually is behind it.
func refused(err error) error {
	switch {
	case !errors.Is(err, unix.EPERM):
		return err
	case inUserNamespace():
		return fmt.Errorf("%w: in a user namespace that takes a mount namespace of its own: unshare --user --map-root-user --mount", err)
	}
	return fmt.Errorf("%w: a security module may forbid it; docker: --security-opt apparmor=unconfined", err)
}
