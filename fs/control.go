package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// listenControl starts the control socket, or says why there is none.
func (t *tree) listenControl(wanted bool, takeOver func(store.Caller, *net.UnixConn)) (*fdpass.Server, error) {
	if !wanted {
		return nil, errors.New("switched off")
	}
	if err := store.ProbeReopen(store.NewOS()); err != nil {
		return nil, err
	}
	return fdpass.Listen(fdpass.Options{
		Open: t.openArena, TakeOver: takeOver, Errno: toErrno, Logger: t.log,
		Audience: fdpass.Audience{Everyone: t.shared, UID: t.owner.UID, GID: t.owner.GID},
	})
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
