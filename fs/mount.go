package fs

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
)

// Options describe a mount.
type Options struct {
	Dir        string // an existing empty folder, absolute
	Store      *store.Store
	Logger     *slog.Logger
	Version    string
	UID, GID   uint32 // who owns the root folder
	AllowOther bool   // any user may use the mount
	Share      bool   // with AllowOther: users may read each other's entries
	// Served means that the process is root and serves the user UID: only that user may use the mount.
	Served      bool
	Passthrough bool // use it if the kernel and the privileges allow it
	FDPassing   bool // hand out arenas over a socket
	// ControlDir is the folder in which the socket is made, see fdpass.PrepareFolder. Where that fails there is no mount.
	// "": where there is one for such things, or else no socket.
	ControlDir string
	HugePages  error // why the store has none
	Pressure   error // why nobody tells the store of memory pressure
	// Detached means that the mount is in no place until a running daemon puts it in its own, see Mount.TakeOver.
	Detached bool
	Debug    bool // log every request
}

// Mount is a mounted store.
type Mount struct {
	tree   *tree
	root   *rootDir
	server *fuse.Server
	socket *fdpass.Server // nil without FD passing
	dir    string
	at     *place // of dir; closed with done
	log    *slog.Logger
	done   chan struct{} // closed when the serve loop has ended

	detached   int           // the mount, while it is in no place; or -1
	mounted    chan struct{} // closed when New has succeeded
	superseded chan struct{} // closed when another daemon's mount is in the place of this one

	place   sync.Mutex // held while the place in the tree changes
	leaving bool       // guarded by place: Unmount was called
	offers  sync.WaitGroup
}

// New mounts and serves in the background until Unmount, or until somebody else unmounts.
func New(opts Options) (*Mount, error) {
	t := &tree{
		store: opts.Store, log: opts.Logger, version: opts.Version, mountedAt: opts.Dir, started: time.Now(),
		owner:  store.Caller{UID: opts.UID, GID: opts.GID},
		shared: opts.AllowOther, share: opts.Share, hugePages: active(opts.HugePages), pressure: active(opts.Pressure),
	}
	t.metrics = newMetrics(t)
	t.giveBack = newGiveBack()
	t.pruner = &pruner{after: pruneAfter, freed: t.giveBack.worked, seen: map[string]time.Time{}}
	err := MayMount(opts.Dir, opts.AllowOther)
	if err != nil {
		return nil, err
	}
	direct := mountsItself()
	options := []string{}
	if opts.Served {
		options = append(options, fmt.Sprintf("user_id=%d", opts.UID), fmt.Sprintf("group_id=%d", opts.GID))
	}
	if opts.AllowOther || opts.Served {
		options = append(options, "default_permissions")
	}
	never := time.Duration(0)
	nodeOptions := &fusefs.Options{
		NullPermissions: true,
		EntryTimeout:    &never,
		AttrTimeout:     &never,
		Logger:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
		MountOptions: fuse.MountOptions{
			FsName:            "overmind",
			Name:              subtype,
			Options:           options,
			AllowOther:        opts.AllowOther || opts.Served,
			DirectMountStrict: direct,
			MaxWrite:          1 << 20,
			MaxBackground:     64,
			MaxStackDepth:     1, // a passthrough file must not itself be stacked; memfds are not
			Debug:             opts.Debug,
			Logger:            slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
			PanicHandler: func(what any) fuse.Status {
				opts.Logger.Error("panic in a request handler", "panic", what, "stack", string(debug.Stack()))
				return fuse.EIO
			},
		},
	}
	m := &Mount{
		tree: t, dir: opts.Dir, log: opts.Logger, detached: -1,
		done: make(chan struct{}), mounted: make(chan struct{}), superseded: make(chan struct{}),
	}
	mountPoint := opts.Dir
	if m.at, err = openPlace(opts.Dir); err != nil {
		return nil, fmt.Errorf("mount %s: %w", opts.Dir, err)
	}
	if opts.Detached {
		mountPoint, err = m.mountDetached(opts, &nodeOptions.MountOptions)
	} else {
		var folder int
		if folder, err = m.at.folder(); err == nil {
			defer func() { _ = unix.Close(folder) }()
			mark(folder)
		}
		if direct {
			mountPoint = fmt.Sprintf("/proc/self/fd/%d", folder)
		}
	}
	if err != nil {
		m.at.close()
		return nil, fmt.Errorf("mount %s: %w", opts.Dir, err)
	}
	socket, target, err := t.listenControl(opts, m.offer)
	if err != nil && opts.ControlDir != "" {
		m.closeDetached()
		close(m.done)
		return nil, fmt.Errorf("control folder %s: %w", opts.ControlDir, err)
	}
	t.fdPassing = active(err)
	top := newRoot(t, target)
	server, err := fuse.NewServer(fusefs.NewNodeFS(top, nodeOptions), mountPoint, &nodeOptions.MountOptions)
	if err != nil {
		m.closeDetached()
		m.at.close()
		close(m.done)
		if socket != nil {
			socket.Close()
		}
		if !direct {
			return nil, fmt.Errorf("mount %s: %w", opts.Dir, helperFailed(err))
		}
		return nil, fmt.Errorf("mount %s: %w", opts.Dir, refused(err))
	}
	// Before the first request is served, so that all handles of the mount agree.
	t.passthrough = active(probePassthrough(server, opts.Passthrough))
	m.root, m.server, m.socket = top, server, socket
	close(m.mounted)
	go func() {
		defer close(m.done)
		defer m.at.close()
		defer m.closeSocket()
		defer t.giveBack.stop()
		defer t.pruner.stop()
		server.Serve()
		m.awaitAnswer()
	}()
	// server.WaitMount is not called on purpose. INIT has been answered, so there is nothing to wait for, and it opens a
	// file of the mount to make the kernel stop asking about poll: a process that is killed in the middle of a request
	// to itself can never end. Poll only matters to a process that opens files of the mount it serves.
	return m, nil
}

// Done is closed when the mount is gone.
func (m *Mount) Done() <-chan struct{} { return m.done }

// Status is what status.json shows.
func (m *Mount) Status() Status { return m.tree.status() }

// discardWait is how long the end of a mount that got no place is waited for.
const discardWait = 5 * time.Second

// Unmount unmounts, lazily if files are open; the kernel ends what these still ask when the process exits, and
// mappings of arenas stay valid. It reports whether it had to be lazy.
func (m *Mount) Unmount() (lazy bool, err error) {
	defer m.closeSocket()
	m.place.Lock()
	m.leaving = true // nobody can take the place any more
	m.place.Unlock()
	select {
	case <-m.superseded: // what is mounted there is not ours
		return true, nil
	default:
	}
	if m.detached >= 0 {
		m.closeDetached()
		select {
		case <-m.done:
		case <-time.After(discardWait):
		}
		return false, nil
	}
	const tries = 5 // a file that was just closed keeps the mount busy for a moment
	for try := range tries {
		if err = m.detach(false); err == nil {
			<-m.done
			return false, nil
		}
		select {
		case <-m.done: // somebody else was faster
			return false, nil
		case <-time.After(time.Duration(try+1) * 5 * time.Millisecond):
		}
	}
	return true, m.detach(true)
}

// detach unmounts in the place where the mount was made, whatever its path leads to now.
func (m *Mount) detach(lazy bool) error { return detachAt(m.at, m.dir, lazy) }

func (m *Mount) closeSocket() {
	if m.socket != nil {
		m.socket.Close()
	}
}

// errors of probePassthrough are shown in status.json
func probePassthrough(server *fuse.Server, wanted bool) error {
	if !wanted {
		return fmt.Errorf("switched off")
	}
	if server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		return fmt.Errorf("the kernel has no FUSE passthrough (Linux 6.9 or later, CONFIG_FUSE_PASSTHROUGH)")
	}
	// One failed registration later would switch passthrough off half-way, for files that are open already.
	fd, err := unix.MemfdCreate("overmind-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	id, errno := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno == syscall.EPERM {
		return fmt.Errorf("the daemon lacks CAP_SYS_ADMIN in the initial user namespace")
	}
	if errno != 0 {
		return fmt.Errorf("the kernel refused a backing file: %w", errno)
	}
	if errno := server.UnregisterBackingFd(id); errno != 0 {
		return fmt.Errorf("the kernel kept a backing file: %w", errno)
	}
	return nil
}
