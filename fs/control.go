package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// controlLink is the symbolic link to the socket on which arenas are handed out.
type controlLink struct {
	fusefs.Inode
	tree *tree
	path string
}

var (
	_ fusefs.NodeReadlinker = (*controlLink)(nil)
	_ fusefs.NodeGetattrer  = (*controlLink)(nil)
)

func (l *controlLink) Readlink(context.Context) ([]byte, syscall.Errno) { return []byte(l.path), 0 }

func (l *controlLink) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFLNK | 0o777
	out.Nlink = 1
	out.Uid, out.Gid = l.tree.owner.UID, l.tree.owner.GID
	out.Size = uint64(len(l.path))
	setTimes(&out.Attr, l.tree.started)
	return 0
}

// listenControl starts the control socket and returns what the link to it says, or why there is none.
func (t *tree) listenControl(o Options, takeOver func(store.Caller, *net.UnixConn)) (*fdpass.Server, string, error) {
	if !o.FDPassing {
		return nil, "", errors.New("switched off")
	}
	if err := store.ProbeReopen(store.NewOS()); err != nil {
		return nil, "", err
	}
	options := fdpass.Options{
		Open: t.openArena, TakeOver: takeOver, Errno: toErrno, Logger: t.log,
		Audience: fdpass.Audience{Everyone: t.shared, UID: t.owner.UID, GID: t.owner.GID},
	}
	if o.ControlDir != "" {
		folder, err := fdpass.PrepareFolder(o.ControlDir, o.Dir, options.Audience)
		if err != nil {
			return nil, "", err
		}
		options.Bases = []string{folder}
	}
	socket, err := fdpass.Listen(options)
	if err != nil {
		return nil, "", err
	}
	target := socket.Path()
	if o.ControlDir != "" {
		target = controlTarget(o.Dir, target)
	}
	return socket, target, nil
}

// controlTarget is the path of a socket as the link gives it: a relative one where it lies below the folder that the
// mount is in. A container that has this folder, wherever, then finds the socket of each daemon that comes.
func controlTarget(mount, socket string) string {
	parent := filepath.Dir(mount)
	below, err := filepath.Rel(parent, socket)
	if parent == "/" || err != nil || !filepath.IsLocal(below) { // nobody gives "/" to a container under another name
		return socket
	}
	return filepath.Join("..", below)
}

// ControlSocket returns where the control socket of a mount is. It asks the daemon. The error is os.ErrNotExist where the
// mount has none; a socket that is gone is none.
func ControlSocket(dir string) (string, error) {
	target, err := os.Readlink(filepath.Join(dir, "control"))
	if err != nil || filepath.IsAbs(target) {
		return target, err
	}
	if path, err := filepath.EvalSymlinks(dir + "/" + target); err == nil {
		return path, nil
	}
	return filepath.Join(dir, target), nil
}

// mayUse says whether the kernel would let a user into the mount. Root is let in too: nothing is kept from root.
func (t *tree) mayUse(c store.Caller) bool {
	return t.shared || c.UID == 0 || c.UID == t.owner.UID
}

// openArena returns a descriptor on the memory of an arena, to those who can open its file: a published one to read, that
// of a staging to its owner, to write.
func (t *tree) openArena(c store.Caller, r schema.Request) (int, error) {
	if !t.mayUse(c) {
		return -1, store.ErrNotOwner
	}
	find := t.store.Published
	if r.Staged() {
		find = t.store.Staging
	}
	e, err := find(r.ID)
	if err != nil {
		return -1, err
	}
	if !c.Owns(e.Owner()) && (r.Staged() || !t.mayRead(c, e.Owner())) {
		return -1, store.ErrNotOwner
	}
	f, err := e.File(store.TensorsName, r.Name)
	if err != nil {
		return -1, err
	}
	if serialIno(f.Serial()) != r.Inode {
		return -1, fmt.Errorf("%w: it was replaced", store.ErrNotFound)
	}
	return f.Reopen(r.Staged(), c.PID)
}
