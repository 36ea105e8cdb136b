package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// storeFile is the part that arenas, manifests and structure.pkl have in common.
type storeFile struct {
	fusefs.Inode
	tree *tree
	file *store.File
}

var (
	_ fusefs.NodeGetattrer = (*storeFile)(nil)
	_ fusefs.NodeSetattrer = (*storeFile)(nil)
)

func (f *storeFile) lookedUp(out *fuse.EntryOut) {
	setTimeouts(out, timeout(f.file.Entry()))
	f.attr(&out.Attr)
}

func (f *storeFile) attr(a *fuse.Attr) {
	fileAttr(a, f.file.Entry(), f.file.Size(), f.file.ModTime())
}

func (f *storeFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.attr(&out.Attr)
	out.SetTimeout(timeout(f.file.Entry()))
	return 0
}

// Setattr sets the size of a staged file. Modes and times of staged files are accepted and ignored: those of a
// published entry are not the filler's to choose, and a loader may set them for the sake of a plain folder.
func (f *storeFile) Setattr(_ context.Context, _ fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if s := f.file.Entry().State(); s == store.Published || s == store.Tombstone {
		return toErrno(store.ErrReadOnly)
	}
	if _, ok := in.GetUID(); ok {
		return toErrno(errForbidden)
	}
	if _, ok := in.GetGID(); ok {
		return toErrno(errForbidden)
	}
	if size, ok := in.GetSize(); ok {
		if err := f.file.Truncate(size); err != nil {
			return toErrno(err)
		}
	}
	f.attr(&out.Attr)
	return 0
}

// open opens the file with the flags of open(2).
func (f *storeFile) open(ctx context.Context, flags uint32) (*store.Handle, error) {
	write := flags&syscall.O_ACCMODE != syscall.O_RDONLY
	return f.file.Open(write, callerOf(ctx).PID)
}
