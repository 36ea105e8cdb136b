package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// lockFile is locks/<id>, an empty file.
type lockFile struct {
	fusefs.Inode
	tree *tree
	id   string
}

var (
	_ fusefs.NodeGetattrer = (*lockFile)(nil)
	_ fusefs.NodeSetattrer = (*lockFile)(nil)
	_ fusefs.NodeOpener    = (*lockFile)(nil)
)

func (l *lockFile) attr(a *fuse.Attr) {
	a.Mode = syscall.S_IFREG | 0o666
	a.Nlink = 1
	a.Uid, a.Gid = l.tree.owner.UID, l.tree.owner.GID
	setTimes(a, l.tree.started)
}

func (l *lockFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	l.attr(&out.Attr)
	out.SetTimeout(settled)
	return 0
}

// Setattr lets O_TRUNC pass.
func (l *lockFile) Setattr(_ context.Context, _ fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok && size > 0 {
		return toErrno(errForbidden)
	}
	l.attr(&out.Attr)
	return 0
}

func (l *lockFile) Open(ctx context.Context, _ uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	caller := callerOf(ctx)
	if err := l.tree.mayFill(l.id, caller); err != nil {
		return nil, 0, toErrno(err) // also for reading: flock does not ask
	}
	h, err := l.tree.store.OpenLock(l.id, caller)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	return &lockHandle{tree: l.tree, id: l.id, handle: h}, 0, 0
}

// lockHandle tells the store when it is released, also by the death of its holder.
type lockHandle struct {
	noFlush
	tree   *tree
	id     string
	handle *store.LockHandle
}

var (
	_ fusefs.FileReader   = (*lockHandle)(nil)
	_ fusefs.FileReleaser = (*lockHandle)(nil)
)

func (h *lockHandle) Read(context.Context, []byte, int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultData(nil), 0
}

func (h *lockHandle) Release(context.Context) syscall.Errno {
	h.handle.Release()
	h.tree.pruner.saw(h.id)
	return 0
}
