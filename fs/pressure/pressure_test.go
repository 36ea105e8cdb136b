package pressure

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// urgent returns a descriptor that polls as a trigger does, and how to fire it: by urgent data of TCP.
func urgent(t *testing.T) (fd int, fire, drain func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	out, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	in, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { _, _ = out.Close(), in.Close() })
	descriptor := func(c net.Conn) int {
		f, err := c.(*net.TCPConn).File()
		must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		fd := int(f.Fd())
		must(t, unix.SetNonblock(fd, true))
		return fd
	}
	from, to := descriptor(out), descriptor(in)
	fire = func() { must(t, unix.Sendto(from, []byte("!"), unix.MSG_OOB, nil)) }
	drain = func() { _, _, _ = unix.Recvfrom(to, make([]byte, 1), unix.MSG_OOB) }
	return to, fire, drain
}

func TestWatch(t *testing.T) {
	one, fireOne, drainOne := urgent(t)
	two, fireTwo, drainTwo := urgent(t)
	w := &Watcher{paths: []string{"one", "two"}, fds: []int{one, two}}
	ctx, stop := context.WithCancel(context.Background())
	fired := make(chan string)
	drained := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- w.Watch(ctx, func(path string) {
			fired <- path
			<-drained // the kernel takes an event of a trigger back by itself
		})
	}()
	for range 2 {
		fireTwo()
		if got := <-fired; got != "two" {
			t.Errorf("%s fired", got)
		}
		drainTwo()
		drained <- struct{}{}
	}
	fireOne()
	if got := <-fired; got != "one" {
		t.Errorf("%s fired", got)
	}
	drainOne()
	drained <- struct{}{}
	stop()
	must(t, <-ended)
}

// A trigger whose cgroup was removed polls as an error for good. It must not keep a processor busy, or hide others.
func TestWatchGivesUpWhatIsGone(t *testing.T) {
	var gone [2]int
	must(t, unix.Pipe2(gone[:], unix.O_CLOEXEC))
	must(t, unix.Close(gone[0]))
	alive, fire, drain := urgent(t)
	w := &Watcher{paths: []string{"gone", "alive"}, fds: []int{gone[1], alive}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	fire()
	ended := make(chan error, 1)
	go func() { ended <- w.Watch(ctx, func(string) { drain(); stop() }) }()
	must(t, <-ended)

	w = &Watcher{paths: []string{"gone"}, fds: []int{gone[1]}}
	if err := w.Watch(context.Background(), func(string) {}); err == nil {
		t.Error("it goes on without any trigger")
	}
	must(t, unix.Close(gone[1]))
}

func TestOpen(t *testing.T) {
	for _, share := range []float64{0, -1, 1.5} {
		if _, err := Open([]string{"/proc/pressure/memory"}, share); err == nil {
			t.Errorf("a share of %v is accepted", share)
		}
	}
	missing := filepath.Join(t.TempDir(), "memory.pressure")
	_, err := Open([]string{missing}, 0.1)
	if err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "CONFIG_PSI") {
		t.Errorf("got %v", err)
	}
	w, err := Open([]string{missing, "/proc/pressure/memory"}, 0.1)
	if err != nil {
		t.Skipf("no trigger can be set here: %v", err)
	}
	if len(w.Paths()) != 1 {
		t.Errorf("paths %v", w.Paths())
	}
	// A trigger that has not fired ends with its context, and leaves nothing open.
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	must(t, w.Watch(ctx, func(string) {}))
	fd := w.fds[0]
	w.Close()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("descriptor %d is still open: %v", fd, err)
	}
}
