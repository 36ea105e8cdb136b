package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/handover"
	"overmind-fs/fs/store"
)

// RetireAfter is how long a daemon whose mount was replaced keeps entries that nobody has open, for programs that were
// looking them up at that moment.
const RetireAfter = 10 * time.Second

// ErrFDPassingOff is returned when the running daemon has no control socket.
var ErrFDPassingOff = errors.New("it was started with --fd-passing=off and hands nothing over")

// TakeOver takes everything over from the daemon that is mounted at the folder of this mount, whose control socket is
// given, into an empty store, and gets its place. The mount must be Detached. On error the running daemon goes on.
func (m *Mount) TakeOver(socket string) (pid int, err error) {
	calls := store.NewOS()
	t, err := handover.Take(socket, &calls, m.log)
	if err != nil {
		return 0, err
	}
	defer t.Close()
	all, err := t.Collect()
	if err != nil {
		return 0, err
	}
	if err := m.tree.store.Adopt(all); err != nil {
		return 0, err
	}
	if err := t.Switch(m.detached); err != nil {
		if placed, e := m.placed(); !placed {
			return 0, errors.Join(err, e)
		}
		m.log.Warn("the running daemon ended during the takeover", "pid", t.PID, "error", err)
	}
	m.closeDetached()
	return t.PID, nil
}

// placed finds out whether the running daemon got as far as to put this mount into its place, and removes its own if it
// died half-way.
func (m *Mount) placed() (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(m.detached, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return false, fmt.Errorf("statx of the new mount: %w", err)
	}
	ids, err := mountsAt(m.dir)
	at := slices.Index(ids, st.Mnt_id)
	switch {
	case err != nil || at < 0:
		return false, err
	case at == len(ids)-1:
		return true, nil
	}
	if health, _ := ProbeMount(m.dir); health != DeadMount {
		return false, fmt.Errorf("%s: the new mount lies beneath the running one", m.dir)
	}
	return true, Detach(m.dir, true)
}

// Superseded is closed when another daemon's mount has taken the place of this one. What is open is served until Done.
func (m *Mount) Superseded() <-chan struct{} { return m.superseded }

// offer answers a daemon that wants to take over.
func (m *Mount) offer(c store.Caller, conn *net.UnixConn) {
	select {
	case <-m.mounted:
	case <-m.done:
		return
	}
	m.place.Lock()
	m.offers.Add(1)
	m.place.Unlock()
	defer m.offers.Done()
	m.log.Info("another daemon takes over", "pid", c.PID)
	if err := handover.Offer(context.Background(), conn, m.tree.store, m.giveWay); err != nil {
		m.log.Warn("the takeover failed, this daemon goes on", "pid", c.PID, "error", err)
	}
}

// awaitAnswer lets the daemon that has taken over hear of it, although nothing may be left to do here.
func (m *Mount) awaitAnswer() {
	m.place.Lock()
	defer m.place.Unlock()
	select {
	case <-m.superseded:
		m.offers.Wait()
	default:
	}
}

// giveWay puts the new mount in the place of this one. The locks of our clients are held there too, and the stagings
// that they write are open for writing, so that nobody else fills the same and no commit comes too early.
func (m *Mount) giveWay(mount int) (err error) {
	locks, writers := map[string]func(){}, map[*store.File]func(){}
	defer func() {
		if err != nil {
			for _, done := range locks {
				done()
			}
			for _, done := range writers {
				done()
			}
		}
	}()
	var st unix.Statfs_t
	if err := unix.Fstatfs(mount, &st); err != nil {
		return fmt.Errorf("the new mount does not answer: %w", err)
	}
	if st.Type != unix.FUSE_SUPER_MAGIC {
		return fmt.Errorf("%w: the new mount is of another kind", unix.EINVAL)
	}
	for _, id := range m.tree.store.LockIDs() {
		if locks[id], err = holdLock(mount, id); err != nil {
			return err
		}
	}
	for _, f := range m.tree.store.Writers() {
		path := filepath.Join("staging", f.Entry().ID(), f.Name())
		if f.IsArena() {
			path = filepath.Join("staging", f.Entry().ID(), store.TensorsName, f.Name())
		}
		fd, err := unix.Openat(mount, path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s of the new mount: %w", path, err)
		}
		writers[f] = func() { _ = unix.Close(fd) }
	}
	m.place.Lock()
	defer m.place.Unlock()
	if m.leaving {
		return fmt.Errorf("%w: it is being unmounted", store.ErrBusy)
	}
	if err := exchange(m.dir, mount); err != nil {
		return err
	}
	m.tree.store.Supersede(locks, writers)
	close(m.superseded)
	return nil
}

// holdLock takes a lock in the new mount.
func holdLock(mount int, id string) (func(), error) {
	path := filepath.Join("locks", id)
	fd, err := unix.Openat(mount, path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s of the new mount: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("lock %s of the new mount: %w", path, err)
	}
	return func() { _ = unix.Close(fd) }, nil
}
