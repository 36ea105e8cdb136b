package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// arenaFile is tensors/<component>.safetensors.
type arenaFile struct {
	storeFile
}

var _ fusefs.NodeOpener = (*arenaFile)(nil)

func newArenaFile(ctx context.Context, parent *fusefs.Inode, t *tree, f *store.File, out *fuse.EntryOut) *fusefs.Inode {
	node := &arenaFile{storeFile{tree: t, file: f}}
	node.lookedUp(out)
	return parent.NewInode(ctx, node, regular(serialIno(f.Serial())))
}

// Open gives a lease. Without passthrough the page cache stays valid across opens: nobody else writes the memfd.
func (a *arenaFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, err := a.open(ctx, flags)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	return newArenaHandle(a.tree, h), fuse.FOPEN_KEEP_CACHE, 0
}
