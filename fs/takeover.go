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

// answerWait is how long the new mount may take to answer while the changes of clients wait.
const answerWait = time.Second

// ErrFDPassingOff is returned when the running daemon has no control socket.
var ErrFDPassingOff = errors.New("it was started with --fd-passing=off and hands nothing over")

// TakeOver takes everything over from the daemon that is mounted at the folder of this mount, whose control socket is
// given, into an empty store, and gets its place. The mount must be Detached. On error, and when ctx ends before the
// place is taken, the running daemon goes on.
func (m *Mount) TakeOver(ctx context.Context, socket string) (pid int, err error) {
	t, err := handover.Take(socket, m.tree.store, m.log)
	if err != nil {
		return 0, err
	}
	defer t.Close()
	all, err := t.Collect(ctx)
	if err != nil {
		return 0, err
	}
	if err := m.tree.store.Adopt(all); err != nil {
		return 0, err
	}
	m.tree.store.Succeed(t.PID)
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
	return true, m.detach(true)
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

// giveWay puts the new mount in the place of this one.
func (m *Mount) giveWay(mount int) error {
	in, err := m.standIns(mount)
	if err != nil {
		return err
	}
	m.place.Lock()
	defer m.place.Unlock()
	if m.leaving {
		err = fmt.Errorf("%w: it is being unmounted", store.ErrBusy)
	} else {
		err = m.exchange(mount)
	}
	if err != nil {
		in.close()
		return err
	}
	m.tree.store.Supersede(in.locks, in.writers)
	close(m.superseded)
	return nil
}

// standIns are held in the new mount for our clients: their locks, and what they write in stagings, so that nobody else
// fills the same and no commit comes too early.
type standIns struct {
	locks   map[string]func()
	writers map[*store.File]func()
}

func (in standIns) close() {
	for _, done := range in.locks {
		done()
	}
	for _, done := range in.writers {
		done()
	}
}

// standIns opens files of the new mount, whose daemon may hang: then it is given up.
func (m *Mount) standIns(mount int) (standIns, error) {
	own, err := unix.FcntlInt(uintptr(mount), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return standIns{}, fmt.Errorf("dup: %w", err)
	}
	type result struct {
		in  standIns
		err error
	}
	opened, late := make(chan result), make(chan struct{})
	go func() {
		defer func() { _ = unix.Close(own) }()
		in, err := m.openStandIns(own)
		select {
		case opened <- result{in, err}:
		case <-late:
			in.close()
		}
	}()
	select {
	case r := <-opened:
		return r.in, r.err
	case <-time.After(answerWait):
		close(late)
		return standIns{}, errors.New("the new mount does not answer")
	}
}

func (m *Mount) openStandIns(mount int) (in standIns, err error) {
	in = standIns{map[string]func(){}, map[*store.File]func(){}}
	defer func() {
		if err != nil {
			in.close()
			in = standIns{}
		}
	}()
	var st unix.Statfs_t
	if err := unix.Fstatfs(mount, &st); err != nil {
		return in, fmt.Errorf("the new mount does not answer: %w", err)
	}
	if st.Type != unix.FUSE_SUPER_MAGIC {
		return in, fmt.Errorf("%w: the new mount is of another kind", unix.EINVAL)
	}
	for _, id := range m.tree.store.LockIDs() {
		done, err := holdLock(mount, id)
		if err != nil {
			return in, err
		}
		in.locks[id] = done
	}
	for _, f := range m.tree.store.Writers() {
		path := filepath.Join("staging", f.Entry().ID(), f.Name())
		if f.IsArena() {
			path = filepath.Join("staging", f.Entry().ID(), store.TensorsName, f.Name())
		}
		fd, err := unix.Openat(mount, path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return in, fmt.Errorf("%s of the new mount: %w", path, err)
		}
		in.writers[f] = func() { _ = unix.Close(fd) }
	}
	return in, nil
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
