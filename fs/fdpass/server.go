package fdpass

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
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
	// patience is how long a connection may last, unless Options say otherwise.
	patience = 2 * time.Second
	// MaxConnections is how many there may be; more are closed at once.
	MaxConnections = 256
	// MaxPerUser is how many of them one user may have.
	MaxPerUser = 64
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
	Bases    []string      // where the runtime folder may lie, best first; nil: where it should
	Patience time.Duration // how long a connection may last; 0: two seconds
}

// Server answers on a socket until it is closed.
type Server struct {
	opts     Options
	listener *net.UnixListener
	folder   *folder
	path     string
	wait     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	conns  map[*net.UnixConn]uint32 // whose each is
	users  map[uint32]int           // how many each has
}

// Listen makes a socket in a folder of its own and answers in the background.
func Listen(opts Options) (*Server, error) {
	if opts.Patience == 0 {
		opts.Patience = patience
	}
	where := opts.Bases
	if where == nil {
		where = bases(opts.Audience)
	}
	l, f, err := listen(where, opts.Audience)
	if err != nil {
		return nil, fmt.Errorf("no socket: %w", err)
	}
	s := &Server{
		opts: opts, listener: l, folder: f, path: f.path(), conns: map[*net.UnixConn]uint32{},
		users: map[uint32]int{},
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
		s.folder.remove()
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
		caller, err := peer(c)
		if err == nil && s.enter(c, caller.UID) {
			go s.serve(c, caller)
			continue
		}
		_ = c.Close()
		s.opts.Logger.Debug("connection refused on the control socket", "uid", caller.UID, "error", err)
	}
}

// enter registers a connection, unless there are too many, of all users or of this one, or the server is closed.
func (s *Server) enter(c *net.UnixConn, uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= MaxConnections || s.users[uid] >= MaxPerUser {
		return false
	}
	s.conns[c] = uid
	s.users[uid]++
	s.wait.Add(1)
	return true
}

func (s *Server) leave(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := s.conns[c]
	delete(s.conns, c)
	if s.users[uid]--; s.users[uid] == 0 {
		delete(s.users, uid)
	}
	_ = c.Close()
}

func (s *Server) serve(c *net.UnixConn, caller store.Caller) {
	defer s.wait.Done()
	defer s.leave(c)
	if err := c.SetDeadline(time.Now().Add(s.opts.Patience)); err != nil {
		return
	}
	message := make([]byte, schema.MaxMessage+1) // one more, to see what is too long
	n, err := c.Read(message)
	if err != nil || n == 0 {
		return // silent or gone
	}
	fd, err := s.answer(c, caller, message[:n])
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
func (s *Server) answer(c *net.UnixConn, caller store.Caller, message []byte) (fd int, err error) {
	defer func() {
		if what := recover(); what != nil {
			s.opts.Logger.Error("panic on the control socket", "panic", what, "stack", string(debug.Stack()))
			fd, err = -1, fmt.Errorf("panic: %v", what)
		}
	}()
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
