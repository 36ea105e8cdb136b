package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// dir is the base of all folders: it refuses every change, because the defaults of go-fuse let an unlink succeed
// without doing anything. Folders override what they allow.
type dir struct {
	fusefs.Inode
	tree *tree
}

var (
	_ fusefs.NodeMkdirer   = (*dir)(nil)
	_ fusefs.NodeCreater   = (*dir)(nil)
	_ fusefs.NodeMknoder   = (*dir)(nil)
	_ fusefs.NodeSymlinker = (*dir)(nil)
	_ fusefs.NodeLinker    = (*dir)(nil)
	_ fusefs.NodeUnlinker  = (*dir)(nil)
	_ fusefs.NodeRmdirer   = (*dir)(nil)
	_ fusefs.NodeRenamer   = (*dir)(nil)
	_ fusefs.NodeSetattrer = (*dir)(nil)
	_ fusefs.NodeStatfser  = (*dir)(nil)
)

func (d *dir) Mkdir(context.Context, string, uint32, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, toErrno(errForbidden)
}

func (d *dir) Create(context.Context, string, uint32, uint32, *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, toErrno(errForbidden)
}

func (d *dir) Mknod(context.Context, string, uint32, uint32, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, toErrno(errForbidden)
}

func (d *dir) Symlink(context.Context, string, string, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, toErrno(errForbidden)
}

func (d *dir) Link(context.Context, fusefs.InodeEmbedder, string, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, toErrno(errForbidden)
}

func (d *dir) Unlink(context.Context, string) syscall.Errno { return toErrno(errForbidden) }

func (d *dir) Rmdir(context.Context, string) syscall.Errno { return toErrno(errForbidden) }

func (d *dir) Rename(context.Context, string, fusefs.InodeEmbedder, string, uint32) syscall.Errno {
	return toErrno(errForbidden)
}

func (d *dir) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(errForbidden)
}

// Statfs shows the budget as the size of the file system.
func (d *dir) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const block = 4096
	total, free := d.tree.store.Full()
	out.Bsize, out.Frsize, out.NameLen = block, block, 255
	out.Blocks, out.Bfree, out.Bavail = total/block, free/block, free/block
	return 0
}

// listing is a folder's content; names are looked up when they are used.
func listing(entries []fuse.DirEntry) (fusefs.DirStream, syscall.Errno) {
	return fusefs.NewListDirStream(entries), 0
}
