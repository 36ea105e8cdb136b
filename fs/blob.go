package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// blobFile is manifest or structure.pkl.
type blobFile struct {
	storeFile
}

var _ fusefs.NodeOpener = (*blobFile)(nil)

func newBlobFile(ctx context.Context, parent *fusefs.Inode, t *tree, f *store.File, out *fuse.EntryOut) *fusefs.Inode {
	node := &blobFile{storeFile{tree: t, file: f}}
	node.lookedUp(out)
	return parent.NewInode(ctx, node, regular(serialIno(f.Serial())))
}

// Open counts a hit where a reader can no longer turn back: it has read the manifest, found it current, and now loads.
func (b *blobFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, err := b.open(ctx, flags)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	if b.file.Name() == store.StructureName {
		b.file.Entry().Hit()
	}
	return &fileHandle{tree: b.tree, handle: h}, fuse.FOPEN_KEEP_CACHE, 0
}
