package store

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// baseSeals make a memfd immutable for good. They are never weakened: what cannot have them is not published. (What is
// published and small is then copied into the pack.)
const baseSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// sizeSeals fix the size of an arena from the moment when it is allocated, so that no client can grow it past the
// budget through a passthrough handle, of whose writes the daemon hears nothing.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// memfdMode keeps others than the daemon's user from what seals leave open to those who may write: attributes and times,
// which all who have the memory would see. What they may read and write is decided when a descriptor is handed out.
const memfdMode = 0o600

// newMemfd returns an empty sealable memfd that is closed on exec and, where the kernel knows how, not executable.
func newMemfd(os *OS, name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := os.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = os.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Fchmod(fd, memfdMode); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("chmod of a memfd: %w", err)
	}
	return fd, nil
}

// ProbeMemfd returns nil when there can be arenas at all.
func ProbeMemfd(os OS) error {
	fd, err := newMemfd(&os, "overmind-probe")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: the cache is made of memfds; a seccomp profile may forbid them (docker: --security-opt seccomp=unconfined)", err)
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// sealed says whether fd has all base seals.
func sealed(os *OS, fd int) (bool, error) {
	seals, err := os.GetSeals(fd)
	if err != nil {
		return false, fmt.Errorf("read seals: %w", err)
	}
	return seals&baseSeals == baseSeals, nil
}

// seal adds the base seals, once. unix.EBUSY comes back while the file is mapped for writing.
func seal(os *OS, fd int) error {
	if done, err := sealed(os, fd); done || err != nil {
		return err // sealed by a commit that failed later
	}
	err := os.AddSeals(fd, baseSeals|unix.F_SEAL_EXEC) // kernels before 6.3 do not know F_SEAL_EXEC
	if errors.Is(err, unix.EINVAL) {
		err = os.AddSeals(fd, baseSeals)
	}
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// fileSize returns what the kernel says, in bytes.
func fileSize(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return uint64(st.Size), nil
}
