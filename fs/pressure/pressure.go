// Package pressure tells when processes have to wait for memory, from the kernel's pressure stall information (PSI).
package pressure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Window is the time over which the kernel measures. Only its multiples are open to processes without privileges.
const Window = 2 * time.Second

// Watcher holds triggers on pressure files.
type Watcher struct {
	paths []string
	fds   []int
}

// Open sets a trigger on each of the files, such as /proc/pressure/memory, for when the processes that it covers wait
// for memory during more than a share, between 0 and 1, of any Window. Files that do not exist or give no trigger are
// left out; the error says why none does.
func Open(paths []string, share float64) (*Watcher, error) {
	if share <= 0 || share > 1 {
		return nil, fmt.Errorf("a share of %v is not between 0 and 1", share)
	}
	w := &Watcher{}
	var errs []error
	for _, path := range paths {
		fd, err := openTrigger(path, time.Duration(share*float64(Window)))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		w.paths, w.fds = append(w.paths, path), append(w.fds, fd)
	}
	if len(w.fds) == 0 {
		return nil, errors.Join(errs...)
	}
	return w, nil
}

// openTrigger returns a descriptor that polls as urgent when the stall time in a Window passes the given one.
func openTrigger(path string, stall time.Duration) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		// The terminating zero is part of the interface.
		_, err = unix.Write(fd, fmt.Appendf(nil, "some %d %d\x00", stall.Microseconds(), Window.Microseconds()))
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return -1, fmt.Errorf("the kernel keeps no pressure stall information (CONFIG_PSI, psi=1): %w", err)
	}
	return fd, err
}

// Paths are the files that have a trigger.
func (w *Watcher) Paths() []string { return w.paths }

// Watch calls on with the path of each trigger that fires, at most once in a Window for each, until ctx ends, or, with
// an error, until no trigger is left.
func (w *Watcher) Watch(ctx context.Context, on func(path string)) error {
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer func() { _ = unix.Close(end) }()
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail on an eventfd of 0
	})
	defer func() {
		if !stop() {
			<-told
		}
	}()

	polled := []unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}}
	for _, fd := range w.fds {
		polled = append(polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLPRI})
	}
	for left := len(w.fds); left > 0; {
		if _, err := unix.Poll(polled, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if polled[0].Revents != 0 {
			return nil
		}
		for i, p := range polled[1:] {
			switch {
			case p.Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
				polled[i+1].Fd = -1 // its cgroup is gone; poll skips it
				left--
			case p.Revents&unix.POLLPRI != 0:
				on(w.paths[i])
			}
		}
	}
	return errors.New("no pressure file is left")
}

// Close removes the triggers. Watch must have returned.
func (w *Watcher) Close() {
	for _, fd := range w.fds {
		_ = unix.Close(fd)
	}
	w.fds = nil
}
