package fs

import (
	"context"
	"sync/atomic"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// arenaFile is tensors/<component>.safetensors.
type arenaFile struct {
	storeFile
	settled atomic.Bool // the page cache holds nothing from before the publication
}

var _ fusefs.NodeOpener = (*arenaFile)(nil)

func newArenaFile(ctx context.Context, parent *fusefs.Inode, t *tree, f *store.File, out *fuse.EntryOut) *fusefs.Inode {
	node := &arenaFile{storeFile: storeFile{tree: t, file: f}}
	node.lookedUp(out)
	return parent.NewInode(ctx, node, regular(serialIno(f.Serial())))
}

// Open gives a lease. Without passthrough the page cache of a published arena stays valid across opens, since nobody
// writes the memfd any more. A filler may have: what it has written through the file is dropped by the first open.
func (a *arenaFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, err := a.open(ctx, flags)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	var keep uint32
	if a.file.Entry().State() == store.Published && a.settled.Swap(true) {
		keep = fuse.FOPEN_KEEP_CACHE
	}
	return newArenaHandle(a.tree, h, a.EmbeddedInode()), keep, 0
}
