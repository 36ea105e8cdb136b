package fdpass

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

const (
	// patience is how long a connection may last.
	patience = 2 * time.Second
	// MaxConnections is how many there may be; more are closed at once.
	MaxConnections = 128
	// acceptPause is waited after an accept that failed, as when there are no descriptors left.
	acceptPause = 10 * time.Millisecond
)

// Options say what is served and to whom.
type Options struct {
	// Open returns a descriptor for a request, which this package sends and closes, or says why not. It decides who may
	// have what.
	Open func(store.Caller, schema.Request) (fd int, err error)
	// TakeOver answers a request to take over, on the connection and for as long as it wants. It closes nothing.
	TakeOver func(store.Caller, *net.UnixConn)
	// Errno maps errors to what goes into a reply.
	Errno    func(error) syscall.Errno
	Audience Audience
	Logger   *slog.Logger
	Bases    []string // where the runtime folder may lie, best first; nil: where it should
}

// Server answers on a socket until it is closed.
type Server struct {
	opts     Options
	listener *net.UnixListener
	path     string
	free     chan struct{} // a token for each connection that there may still be
	wait     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	conns  map[*net.UnixConn]struct{}
}

// Listen makes a socket in a folder of its own and answers in the background.
func Listen(opts Options) (*Server, error) {
	where := opts.Bases
	if where == nil {
		where = bases(opts.Audience)
	}
	l, path, err := listen(where, opts.Audience)
	if err != nil {
		return nil, fmt.Errorf("no socket: %w", err)
	}
	s := &Server{
		opts: opts, listener: l, path: path, free: make(chan struct{}, MaxConnections), conns: map[*net.UnixConn]struct{}{},
	}
	for range MaxConnections {
		s.free <- struct{}{}
	}
	s.wait.Add(1)
	go s.accept()
	return s, nil
}

// Path is where the socket is.
func (s *Server) Path() string { return s.path }

// Close ends all connections and removes the socket and its folder. It may be called more than once.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		_ = s.listener.Close()
		for c := range s.conns {
			_ = c.Close()
		}
		_ = os.Remove(s.path)
		_ = os.Remove(filepath.Dir(s.path))
	}
	s.mu.Unlock()
	s.wait.Wait()
}

func (s *Server) accept() {
	defer s.wait.Done()
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.opts.Logger.Warn("no connection accepted on the control socket", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case <-s.free:
			if !s.enter(c) {
				return
			}
			go s.serve(c)
		default:
			_ = c.Close()
			s.opts.Logger.Debug("too many connections on the control socket")
		}
	}
}

// enter registers a connection, unless the server is closed.
func (s *Server) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	s.wait.Add(1)
	return true
}

func (s *Server) serve(c *net.UnixConn) {
	defer s.wait.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
		s.free <- struct{}{}
	}()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return
	}
	message := make([]byte, schema.MaxMessage+1) // one more, to see what is too long
	n, err := c.Read(message)
	if err != nil || n == 0 {
		return // silent or gone
	}
	fd, err := s.answer(c, message[:n])
	if errors.Is(err, errTakenOver) {
		return
	}
	if err != nil {
		s.opts.Logger.Debug("refused on the control socket", "error", err)
		reply := schema.Reply{Code: int32(s.opts.Errno(err)), Message: err.Error()}
		_, _ = c.Write(reply.Encode()) // who does not listen has had the answer
		return
	}
	defer func() { _ = unix.Close(fd) }()
	_, _, _ = c.WriteMsgUnix(schema.Reply{}.Encode(), unix.UnixRights(fd), nil)
}

// errTakenOver is returned when a request was answered as a takeover.
var errTakenOver = errors.New("takeover")

// answer opens what a message asks for.
func (s *Server) answer(c *net.UnixConn, message []byte) (fd int, err error) {
	defer func() {
		if what := recover(); what != nil {
			s.opts.Logger.Error("panic on the control socket", "panic", what, "stack", string(debug.Stack()))
			fd, err = -1, fmt.Errorf("panic: %v", what)
		}
	}()
	caller, err := peer(c)
	if err != nil {
		return -1, err
	}
	request, err := schema.DecodeRequest(message)
	if err != nil {
		return -1, err
	}
	switch request.Op {
	case control.OpOpenPublished, control.OpOpenStaged:
		return s.opts.Open(caller, request)
	case control.OpTakeOver:
		if caller.UID != 0 && int(caller.UID) != os.Geteuid() {
			return -1, store.ErrNotOwner
		}
		s.opts.TakeOver(caller, c)
		return -1, errTakenOver
	}
	return -1, fmt.Errorf("%w: operation %d begins nothing", schema.ErrRequest, request.Op)
}

// peer returns who connected, as the kernel saw it then.
func peer(c *net.UnixConn) (store.Caller, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return store.Caller{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return store.Caller{}, err
	}
	if credErr != nil {
		return store.Caller{}, fmt.Errorf("SO_PEERCRED: %w", credErr)
	}
	return store.Caller{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid)}, nil
}
