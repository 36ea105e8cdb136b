package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// manager speaks the side of systemd of the notification and descriptor store protocols.
type manager struct {
	t      *testing.T
	socket string

	mu    sync.Mutex
	said  []string // READY=1 and the like
	names []string // of files
	files []*os.File
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, socket: filepath.Join(t.TempDir(), "notify")}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.listen(c)
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-ended
		for _, f := range m.files {
			_ = f.Close()
		}
	})
	return m
}

func (m *manager) listen(c *net.UnixConn) {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*16))
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		var fds []int
		controls, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for _, control := range controls {
			got, _ := unix.ParseUnixRights(&control)
			fds = append(fds, got...)
		}
		m.take(string(buf[:n]), fds)
	}
}

func (m *manager) take(text string, fds []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := strings.Split(text, "\n")
	name := ""
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, "FDNAME="); ok {
			name = v
		}
	}
	switch {
	case slices.Contains(lines, "FDSTORE=1"):
		if len(fds) != 1 || name == "" || len(name) > 255 || strings.Contains(name, ":") {
			m.t.Errorf("%q with %d descriptors", text, len(fds))
		}
		for _, fd := range fds {
			m.store(name, fd)
		}
		return
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		for i := len(m.names) - 1; i >= 0; i-- {
			if m.names[i] == name {
				_ = m.files[i].Close()
				m.names, m.files = slices.Delete(m.names, i, i+1), slices.Delete(m.files, i, i+1)
			}
		}
	default:
		m.said = append(m.said, lines...)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// store keeps a descriptor. As systemd does, it drops one of an open file that it has already, whatever the name.
func (m *manager) store(name string, fd int) {
	for _, old := range m.files {
		if sameOpenFile(m.t, int(old.Fd()), fd) {
			_ = unix.Close(fd)
			return
		}
	}
	m.names, m.files = append(m.names, name), append(m.files, os.NewFile(uintptr(fd), name))
}

// sameOpenFile says whether two descriptors are duplicates; two of one file, opened twice, are not.
func sameOpenFile(t *testing.T, a, b int) bool {
	const kcmpFile = 0 // KCMP_FILE
	pid := uintptr(os.Getpid())
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, uintptr(a), uintptr(b), 0)
	if errno != 0 {
		t.Errorf("kcmp: %v", errno)
	}
	return order == 0
}

func (m *manager) stored() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.names)
}

func (m *manager) heard(line string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.said, line)
}

func (m *manager) await(descriptors int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%d descriptors are stored", descriptors), func() bool { return len(m.stored()) == descriptors })
}

// start starts the daemon as a service, with everything that is stored. The shell knows the process id beforehand.
func (m *manager) start(dir string, env []string, args ...string) *daemon {
	m.t.Helper()
	needFUSE(m.t)
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &daemon{dir: dir, stderr: &bytes.Buffer{}, ended: make(chan error, 1)}
	program, err := os.Executable()
	must(m.t, err)
	script := `LISTEN_PID=$$ exec "$0" "$@"`
	d.cmd = exec.Command("sh", append([]string{"-c", script, program, "mount", "--max-bytes", "64MiB", dir}, args...)...)
	d.cmd.Env = append(os.Environ(), runEnv+"=1", "GORACE=atexit_sleep_ms=0", "NOTIFY_SOCKET="+m.socket,
		fmt.Sprintf("LISTEN_FDS=%d", len(m.files)), "LISTEN_FDNAMES="+strings.Join(m.names, ":"))
	d.cmd.Env = append(d.cmd.Env, env...)
	d.cmd.ExtraFiles = m.files
	d.cmd.Stderr = d.stderr
	m.said = nil
	must(m.t, d.cmd.Start())
	go func() { d.ended <- d.cmd.Wait() }()
	m.t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		unmountForGood(m.t, dir)
	})
	return d
}

func (m *manager) awaitReady(d *daemon) {
	m.t.Helper()
	eventually(m.t, "READY=1", func() bool { return m.heard("READY=1") })
	waitAlive(m.t, d.dir)
}

func (d *daemon) kill(t *testing.T) {
	t.Helper()
	must(t, d.cmd.Process.Kill())
	<-d.ended
}

// perEntry is the number of descriptors of a test entry: manifest, structure.pkl, one arena, the record.
const perEntry = 4
