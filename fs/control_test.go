package fs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

// passed asks a mount for an arena, as the loader does.
func passed(root string, staged bool, id string, inode uint64) (int, error) {
	path, err := os.Readlink(filepath.Join(root, "control"))
	if err != nil {
		return -1, err
	}
	return passedBy(path, staged, id, inode)
}

// passedBy asks at a socket.
func passedBy(path string, staged bool, id string, inode uint64) (int, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return -1, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return -1, err
	}
	r := schema.Request{Op: control.OpOpenPublished, ID: id, Name: fstest.ArenaName, Inode: inode}
	if staged {
		r.Op = control.OpOpenStaged
	}
	if _, err := c.Write(r.Encode()); err != nil {
		return -1, err
	}
	message, oob := make([]byte, schema.MaxMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.ReadMsgUnix(message, oob)
	if err != nil {
		return -1, err
	}
	reply, err := schema.DecodeReply(message[:n])
	if err != nil {
		return -1, err
	}
	if reply.Code != 0 {
		return -1, syscall.Errno(reply.Code)
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(controls) != 1 {
		return -1, errors.Join(err, errors.New("no descriptor"))
	}
	fds, err := unix.ParseUnixRights(&controls[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(err, errors.New("no descriptor"))
	}
	return fds[0], nil
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

func (m *mounted) needControl(t *testing.T) {
	t.Helper()
	if s := m.Status(); !s.FDPassing.Active {
		t.Fatalf("no fd passing: %s", s.FDPassing.Reason)
	}
}

func TestPublishedArenaIsPassedReadOnly(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		m.needControl(t)
		f := m.fill(t, "a", mib)
		inode := inodeOf(t, fstest.Arena(f.Entry()))
		fd, err := passed(m.dir, false, "a", inode)
		must(t, err)
		defer func() { _ = unix.Close(fd) }()
		mem, err := unix.Mmap(fd, 0, int(mib), unix.PROT_READ, unix.MAP_SHARED)
		must(t, err)
		if string(mem) != string(fstest.Content(mib)) {
			t.Error("other bytes")
		}
		must(t, unix.Munmap(mem))
		_, err = unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		wantErrno(t, err, syscall.EACCES)
		_, err = unix.Pwrite(fd, []byte("x"), 0)
		wantErrno(t, err, syscall.EBADF)
		for what, c := range map[string]struct {
			staged bool
			id     string
			inode  uint64
			want   syscall.Errno
		}{
			"an unknown id":     {false, "b", inode, syscall.ENOENT},
			"a staging":         {true, "a", inode, syscall.ENOENT},
			"a file before it":  {false, "a", inode - 1<<28, syscall.ENOENT},
			"a path":            {false, "../a", inode, syscall.EBADMSG},
			"no inode":          {false, "a", 0, syscall.ENOENT},
			"an impossible one": {false, "a", ^uint64(0), syscall.ENOENT},
		} {
			if fd, err := passed(m.dir, c.staged, c.id, c.inode); !errors.Is(err, c.want) {
				t.Errorf("%s: %d, %v, want %v", what, fd, err, c.want)
			}
		}
		// Replaced under the same name: what was meant is gone.
		must(t, f.Run())
		_, err = passed(m.dir, false, "a", inode)
		wantErrno(t, err, syscall.ENOENT)
		// The memory stays, whatever becomes of the entry.
		must(t, unix.Rmdir(f.Entry()))
		buf := make([]byte, 16)
		if _, err := unix.Pread(fd, buf, 0); err != nil || string(buf) != string(fstest.Content(mib)[:16]) {
			t.Errorf("%x, %v", buf, err)
		}
	})
}

// A fill that writes the memory itself, without passthrough: what is read through the mount and mapped is the same.
func TestFillThroughThePassedMemory(t *testing.T) {
	m := testMount(t, withoutPassthrough)
	m.needControl(t)
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
	must(t, f.Stage())
	inode := inodeOf(t, fstest.Arena(f.Staging()))
	fd, err := passed(m.dir, true, "a", inode)
	must(t, err)
	mem, err := unix.Mmap(fd, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(mem, "written by the map")
	must(t, unix.Munmap(mem))
	must(t, unix.Close(fd))
	must(t, f.Commit())
	_, err = passed(m.dir, true, "a", inode)
	wantErrno(t, err, syscall.ENOENT)
	got, err := os.ReadFile(fstest.Arena(f.Entry()))
	must(t, err)
	if string(got[:18]) != "written by the map" || int64(len(got)) != mib {
		t.Errorf("%q", got[:18])
	}
	if m.metric(t, "arena_reads_total") == "0" {
		t.Error("passthrough was on")
	}
}

// Without the sizes no descriptor: the client could grow the memory past the budget.
func TestUnsizedArenaIsNotPassed(t *testing.T) {
	m := testMount(t)
	must(t, unix.Mkdir(m.path("staging", "a"), 0o755))
	must(t, unix.Mkdir(m.path("staging", "a", "tensors"), 0o755))
	path := fstest.Arena(m.path("staging", "a"))
	fd := openFD(t, path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	defer func() { _ = unix.Close(fd) }()
	_, err := passed(m.dir, true, "a", inodeOf(t, path))
	wantErrno(t, err, syscall.EINVAL)
	must(t, unix.Rmdir(m.path("staging", "a")))
}

// Who gets what, by the rules of the tree.
func TestWhoIsServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const user, other = 65534, 65533
	for name, c := range map[string]struct {
		change            func(*overmindfs.Options, *store.Options)
		filler            uint32
		published, staged map[uint32]string
	}{
		"one user": {
			change:    func(*overmindfs.Options, *store.Options) {},
			published: map[uint32]string{0: "ok", user: "EACCES"},
			staged:    map[uint32]string{0: "ok", user: "EACCES"},
		},
		"served user": {
			change:    func(o *overmindfs.Options, _ *store.Options) { o.Served, o.UID, o.GID = true, user, user },
			filler:    user,
			published: map[uint32]string{0: "ok", user: "ok", other: "EACCES"},
			staged:    map[uint32]string{0: "ok", user: "ok", other: "EACCES"},
		},
		"everybody": {
			change:    func(o *overmindfs.Options, _ *store.Options) { o.AllowOther = true },
			filler:    user,
			published: map[uint32]string{0: "ok", user: "ok", other: "EPERM"},
			staged:    map[uint32]string{0: "ok", user: "ok", other: "EPERM"},
		},
		"everybody, shared": {
			change:    func(o *overmindfs.Options, _ *store.Options) { o.AllowOther, o.Share = true, true },
			filler:    user,
			published: map[uint32]string{0: "ok", user: "ok", other: "ok"},
			staged:    map[uint32]string{0: "ok", user: "ok", other: "EPERM"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := testMount(t, c.change)
			m.needControl(t)
			size, a, s := fmt.Sprint(mib), idOf(c.filler, "a"), idOf(c.filler, "s")
			start(t, c.filler, "fill", m.dir, a, size).finish()
			filler := start(t, c.filler, "stage", m.dir, s, size)
			if got := filler.line(); got != "staged" {
				t.Fatal(got)
			}
			path, err := os.Readlink(m.path("control"))
			must(t, err)
			check := func(staged, id, folder string, want map[uint32]string, closed bool) {
				inode := fmt.Sprint(inodeOf(t, fstest.Arena(m.path(folder, id))))
				for uid, w := range want {
					if w == "EACCES" && !closed {
						w = "EPERM" // no longer the kernel's word, but the daemon's
					}
					if got := start(t, uid, "passed", path, staged, id, inode).finish(); got != w {
						t.Errorf("%s for %d: %s, want %s", folder, uid, got, w)
					}
				}
			}
			check("false", a, "pipelines", c.published, true)
			check("true", s, "staging", c.staged, true)
			// Also for those who have found a way to the socket.
			must(t, os.Chmod(filepath.Dir(path), 0o711))
			must(t, os.Chmod(path, 0o666))
			check("false", a, "pipelines", c.published, false)
			check("true", s, "staging", c.staged, false)
			for uid, want := range map[uint32]string{0: "ok", user: "EPERM", other: "EPERM"} {
				if got := start(t, uid, "takeover", path).finish(); got != want {
					t.Errorf("takeover by %d: %s, want %s", uid, got, want)
				}
			}
			filler.kill()
		})
	}
}

func TestSocketIsGoneAfterTheUnmount(t *testing.T) {
	m := testMount(t)
	m.needControl(t)
	path, err := os.Readlink(m.path("control"))
	must(t, err)
	var s overmindfs.Status
	text, err := os.ReadFile(m.path("status.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &s))
	if !s.FDPassing.Active || m.metric(t, "fd_passing_active") != "1" {
		t.Errorf("status %s", text)
	}
	_, err = m.Unmount()
	must(t, err)
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", path, err)
	}
}

func TestNoFDPassing(t *testing.T) {
	m := testMount(t, func(o *overmindfs.Options, _ *store.Options) { o.FDPassing = false })
	if s := m.Status().FDPassing; s.Active || s.Reason != "switched off" {
		t.Errorf("%+v", s)
	}
	_, err := os.Lstat(m.path("control"))
	wantErrno(t, err, syscall.ENOENT)
	wantErrno(t, unix.Symlink("a", m.path("control")), syscall.EPERM)
}

// Connections that say nothing keep no unmount.
func TestUnmountWithSilentConnections(t *testing.T) {
	m := testMount(t)
	path, err := os.Readlink(m.path("control"))
	must(t, err)
	for range fdpass.MaxConnections + 72 {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		must(t, err)
		defer func() { _ = c.Close() }()
	}
	f := m.fill(t, "a", mib)
	if _, err := os.ReadFile(fstest.Arena(f.Entry())); err != nil {
		t.Error(err)
	}
	// Or the unmount may be lazy, after which the kernel does not say any more that a file was closed.
	eventually(t, "the arena is closed", func() bool { return m.store.Stats().Leases == 0 })
	_, err = m.Unmount()
	must(t, err)
}
