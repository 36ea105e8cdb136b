package fdpass

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

var request = schema.Request{Op: control.OpOpenPublished, ID: "a", Name: "model.safetensors", Inode: 1}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

type fixture struct {
	*Server
	base string
	open atomic.Value // func(store.Caller, schema.Request) (int, error)
}

// serve starts a server that hands out /dev/null, and checks at the end that nothing of it is left.
func serve(t *testing.T, a Audience, change ...func(*Options)) *fixture {
	t.Helper()
	files, routines := openFiles(t), runtime.NumGoroutine()
	fx := &fixture{base: shortDir(t)}
	fx.open.Store(func(store.Caller, schema.Request) (int, error) {
		return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	opts := Options{
		Open: func(c store.Caller, r schema.Request) (int, error) {
			return fx.open.Load().(func(store.Caller, schema.Request) (int, error))(c, r)
		},
		Errno: func(err error) syscall.Errno {
			for want, errno := range map[error]syscall.Errno{
				schema.ErrFrame: syscall.EMSGSIZE, schema.ErrRequest: syscall.EBADMSG, store.ErrNotFound: syscall.ENOENT,
			} {
				if errors.Is(err, want) {
					return errno
				}
			}
			return syscall.EIO
		},
		Audience: a, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Bases: []string{fx.base},
	}
	for _, f := range change {
		f(&opts)
	}
	s, err := Listen(opts)
	must(t, err)
	fx.Server = s
	t.Cleanup(func() {
		s.Close()
		s.Close()
		if names, _ := os.ReadDir(fx.base); len(names) > 0 {
			t.Errorf("left behind: %v", names)
		}
		eventually(t, "no descriptor and no goroutine is left", func() bool {
			return openFiles(t) <= files && runtime.NumGoroutine() <= routines
		})
	})
	return fx
}

func (fx *fixture) connections() int {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	return len(fx.conns)
}

func own() Audience { return Audience{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())} }

func (fx *fixture) dial(t *testing.T) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: fx.Path(), Net: network})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

// receive returns the reply and the descriptors that came with it.
func receive(t *testing.T, c *net.UnixConn) (schema.Reply, []int, error) {
	t.Helper()
	message, oob := make([]byte, schema.MaxMessage+1), make([]byte, unix.CmsgSpace(16))
	n, oobn, _, _, err := c.ReadMsgUnix(message, oob)
	if err != nil || n == 0 {
		return schema.Reply{}, nil, errors.Join(err, io.EOF)
	}
	reply, err := schema.DecodeReply(message[:n])
	must(t, err)
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	must(t, err)
	var fds []int
	for _, m := range controls {
		got, err := unix.ParseUnixRights(&m)
		must(t, err)
		fds = append(fds, got...)
	}
	return reply, fds, nil
}

func (fx *fixture) ask(t *testing.T, message []byte) (schema.Reply, []int) {
	t.Helper()
	c := fx.dial(t)
	defer func() { _ = c.Close() }()
	_, err := c.Write(message)
	must(t, err)
	reply, fds, err := receive(t, c)
	must(t, err)
	return reply, fds
}

func TestADescriptorComesWithTheAnswer(t *testing.T) {
	fx := serve(t, own())
	callers, requests := make(chan store.Caller, 1), make(chan schema.Request, 1)
	fx.open.Store(func(c store.Caller, r schema.Request) (int, error) {
		callers <- c
		requests <- r
		return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	reply, fds := fx.ask(t, request.Encode())
	if reply != (schema.Reply{}) || len(fds) != 1 {
		t.Fatalf("%+v with %d descriptors", reply, len(fds))
	}
	var here, there unix.Stat_t
	must(t, unix.Fstat(fds[0], &there))
	must(t, unix.Stat(os.DevNull, &here))
	must(t, unix.Close(fds[0]))
	if here.Ino != there.Ino {
		t.Error("another file")
	}
	caller, got := <-callers, <-requests
	want := store.Caller{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: os.Getpid()}
	if caller != want || got != request {
		t.Errorf("%+v asks for %+v", caller, got)
	}
}

func TestErrorsAreAnswered(t *testing.T) {
	fx := serve(t, own())
	fx.open.Store(func(_ store.Caller, r schema.Request) (int, error) {
		if r.ID == "panic" {
			panic("on purpose")
		}
		return -1, fmt.Errorf("look: %w", store.ErrNotFound)
	})
	long := make([]byte, schema.MaxMessage+100)
	for what, c := range map[string]struct {
		message []byte
		code    syscall.Errno
	}{
		"missing":   {request.Encode(), syscall.ENOENT},
		"panic":     {schema.Request{Op: control.OpOpenPublished, ID: "panic", Name: "x.safetensors"}.Encode(), syscall.EIO},
		"garbage":   {[]byte("\x04\x00\x00\x00abcd"), syscall.EBADMSG},
		"no frame":  {[]byte("abcdefgh"), syscall.EMSGSIZE},
		"too long":  {long, syscall.EMSGSIZE},
		"cut short": {request.Encode()[:20], syscall.EMSGSIZE},
	} {
		reply, fds := fx.ask(t, c.message)
		if syscall.Errno(reply.Code) != c.code || reply.Message == "" || len(fds) != 0 {
			t.Errorf("%s: %+v with %d descriptors, want %v", what, reply, len(fds), c.code)
		}
	}
}

// Descriptors that a client sends are not kept.
func TestSentDescriptorsAreDropped(t *testing.T) {
	fx := serve(t, own())
	r, w, err := os.Pipe()
	must(t, err)
	defer func() { _ = r.Close() }()
	c := fx.dial(t)
	_, _, err = c.WriteMsgUnix(request.Encode(), unix.UnixRights(int(w.Fd())), nil)
	must(t, err)
	must(t, w.Close())
	_, fds, err := receive(t, c)
	must(t, err)
	must(t, unix.Close(fds[0]))
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the pipe is still open: %d, %v", n, err)
	}
}

func TestOneRequestAConnection(t *testing.T) {
	fx := serve(t, own())
	c := fx.dial(t)
	_, err := c.Write(request.Encode())
	must(t, err)
	_, fds, err := receive(t, c)
	must(t, err)
	must(t, unix.Close(fds[0]))
	_, _ = c.Write(request.Encode())
	if _, _, err := receive(t, c); err == nil {
		t.Error("a second answer")
	}
}

// A client that says nothing loses its connection, and costs nobody else anything.
func TestSilentClient(t *testing.T) {
	fx := serve(t, own())
	begun := time.Now()
	silent := fx.dial(t)
	if reply, fds := fx.ask(t, request.Encode()); reply.Code != 0 || unix.Close(fds[0]) != nil {
		t.Errorf("%+v", reply)
	}
	if _, _, err := receive(t, silent); err == nil {
		t.Error("an answer to nothing")
	}
	if took := time.Since(begun); took < patience/2 {
		t.Errorf("closed after %v", took)
	}
}

// Who ends does not wait until silent clients have lost theirs.
func TestCloseWithSilentClients(t *testing.T) {
	fx := serve(t, own(), func(o *Options) { o.Patience = time.Hour })
	for range 20 {
		fx.dial(t)
	}
	eventually(t, "all are connected", func() bool { return fx.connections() == 20 })
	closed := make(chan struct{})
	go func() {
		fx.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("still not closed")
	}
}

// Clients that do not read their answer keep nothing here.
func TestDeafClients(t *testing.T) {
	fx := serve(t, own())
	before := openFiles(t)
	for range 50 {
		_, err := fx.dial(t).Write(request.Encode())
		must(t, err)
	}
	eventually(t, "the server has forgotten them", func() bool {
		return fx.connections() == 0 && openFiles(t) <= before+50
	})
}

func TestTooManyConnections(t *testing.T) {
	fx := serve(t, own())
	const more = 72
	var conns []*net.UnixConn
	for range MaxPerUser + more {
		conns = append(conns, fx.dial(t))
	}
	closed := 0
	for _, c := range conns {
		must(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		var timeout net.Error
		if _, err := c.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			closed++
		}
		if closed == more {
			break
		}
	}
	if closed != more {
		t.Errorf("%d of %d were closed", closed, len(conns))
	}
	eventually(t, "room again", func() bool {
		c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: fx.Path(), Net: network})
		must(t, err)
		defer func() { _ = c.Close() }()
		if _, err := c.Write(request.Encode()); err != nil {
			return false
		}
		_, fds, err := receive(t, c)
		return err == nil && unix.Close(fds[0]) == nil
	})
}

func TestCloseEndsConnections(t *testing.T) {
	fx := serve(t, own())
	c := fx.dial(t)
	eventually(t, "accepted", func() bool { return fx.connections() == 1 })
	fx.Close()
	if _, _, err := receive(t, c); err == nil {
		t.Error("an answer after the end")
	}
}
