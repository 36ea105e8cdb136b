package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Reopen returns a new descriptor on the memory of an arena, to be handed to process pid, and keeps no reference: the
// caller closes it. For reading, the entry must be published, and so sealed; for writing, a staging in which the arena
// has its size, so that it cannot grow past the budget. The descriptor is not a duplicate: its mode is its own, and its
// flags and locks are not the daemon's.
func (f *File) Reopen(write bool, pid int) (int, error) {
	h, err := f.Open(write, pid)
	if err != nil {
		return -1, err
	}
	defer h.Release()
	f.store.mu.Lock()
	state, ready := f.entry.state, f.kind == arena && f.sized && !f.busy
	f.store.mu.Unlock()
	switch {
	case !ready:
		return -1, fmt.Errorf("%w: %s has no size yet", ErrIncomplete, f.name)
	case !write && state != Published:
		return -1, ErrNotFound
	}
	return reopen(f.store.os, h.FD(), write)
}

func reopen(os *OS, fd int, write bool) (int, error) {
	mode := unix.O_RDONLY
	if write {
		mode = unix.O_RDWR
	}
	got, err := os.Reopen(fd, mode)
	if err != nil {
		return -1, fmt.Errorf("reopen: %w", err)
	}
	return got, nil
}

// ProbeReopen returns nil when memfds can be reopened, which takes /proc.
func ProbeReopen(os OS) error {
	fd, err := newMemfd(&os, "overmind-probe")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	got, err := reopen(&os, fd, false)
	if err != nil {
		return err
	}
	return unix.Close(got)
}
