package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// locksDir has a file for every valid id. flock on it is kept by the kernel, since the mount does not ask for file
// locks to be forwarded; all that this package has to do is to give each name one inode.
type locksDir struct {
	dir
}

var (
	_ fusefs.NodeLookuper  = (*locksDir)(nil)
	_ fusefs.NodeReaddirer = (*locksDir)(nil)
	_ fusefs.NodeGetattrer = (*locksDir)(nil)
	_ fusefs.NodeCreater   = (*locksDir)(nil)
)

// Getattr shows a folder without sticky bit, also under --allow-other: where the kernel protects regular files in
// sticky folders (fs.protected_regular), O_CREAT on another user's lock would fail. Nothing can be removed here anyway.
func (l *locksDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	mode := uint32(0o755)
	if l.tree.shared {
		mode = 0o777
	}
	dirAttr(&out.Attr, mode, l.tree.owner, l.tree.started)
	return 0
}

func (l *locksDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if !schema.ValidID(name) {
		return nil, toErrno(store.ErrNotFound)
	}
	node := &lockFile{tree: l.tree, id: name}
	node.attr(&out.Attr)
	setTimeouts(out, settled)
	l.tree.pruner.saw(name)
	return l.NewInode(ctx, node, regular(lockIno(name))), 0
}

// Readdir lists the locks that are open.
func (l *locksDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	var out []fuse.DirEntry
	for _, id := range l.tree.store.LockIDs() {
		out = append(out, fuse.DirEntry{Name: id, Mode: syscall.S_IFREG, Ino: lockIno(id)})
	}
	return listing(out)
}

// Create is reached for names that Lookup does not know, so for invalid ones only.
func (l *locksDir) Create(context.Context, string, uint32, uint32, *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, toErrno(store.ErrName)
}
