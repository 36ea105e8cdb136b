package fs

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WaitMount makes the mount usable by the process that serves it, see New: it asks for poll once, so that the kernel stops
// asking. As Server.WaitMount does, which does not know the path.
func (m *Mount) WaitMount() error {
	fd, err := unix.Open(filepath.Join(m.dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLPRI | unix.POLLOUT}}, 0)
	return errors.Join(err, unix.Close(fd))
}

// AddPanickingFile adds a file to the root whose open panics in the daemon.
func (m *Mount) AddPanickingFile(name string) {
	node := &generatedFile{tree: m.tree, content: func() ([]byte, error) { panic("on purpose") }}
	m.root.AddChild(name, m.root.NewPersistentInode(context.Background(), node, regular(999)), false)
}

// PruneAfter makes the kernel forget sooner; false where it cannot be asked to.
func (m *Mount) PruneAfter(d time.Duration) bool {
	m.tree.pruner.mu.Lock()
	defer m.tree.pruner.mu.Unlock()
	m.tree.pruner.after = d
	if m.tree.pruner.timer != nil {
		m.tree.pruner.timer.Reset(d)
	}
	return m.root.NotifyPrune(nil) != syscall.ENOSYS
}

// Nodes counts what the kernel knows of the entries and locks.
func (m *Mount) Nodes() int {
	return len(appendTree(nil, m.root.GetChild("pipelines"))) + len(appendTree(nil, m.root.GetChild("locks"))) - 2
}

// ControlTarget is what the link to the control socket says.
var ControlTarget = controlTarget
