package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// storageFile is storages/<n>[.<name>]: a window of an arena. Passthrough has no offsets, so the daemon serves it; it
// can be mapped through the page cache.
type storageFile struct {
	fusefs.Inode
	entry  *store.Entry
	window schema.Storage
	arena  string // "" for an empty storage
}

var (
	_ fusefs.NodeGetattrer = (*storageFile)(nil)
	_ fusefs.NodeSetattrer = (*storageFile)(nil)
	_ fusefs.NodeOpener    = (*storageFile)(nil)
)

func (f *storageFile) attr(a *fuse.Attr) {
	fileAttr(a, f.entry, f.window.Nbytes, f.entry.Created())
}

func (f *storageFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.attr(&out.Attr)
	out.SetTimeout(timeout(f.entry))
	return 0
}

func (f *storageFile) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(store.ErrReadOnly)
}

// Open takes a lease on the arena.
func (f *storageFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, toErrno(store.ErrReadOnly)
	}
	if f.arena == "" {
		if !f.entry.Readable() {
			return nil, 0, toErrno(store.ErrNotFound)
		}
		return &generatedHandle{}, fuse.FOPEN_KEEP_CACHE, 0
	}
	file, err := f.entry.File(store.TensorsName, f.arena)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	h, err := file.Open(false, callerOf(ctx).PID)
	if err != nil {
		return nil, 0, toErrno(err)
	}
	return &storageHandle{handle: h, window: f.window}, fuse.FOPEN_KEEP_CACHE, 0
}

// storageHandle is an open storageFile.
type storageHandle struct {
	noFlush
	handle *store.Handle
	window schema.Storage
}

var (
	_ fusefs.FileReader   = (*storageHandle)(nil)
	_ fusefs.FileReleaser = (*storageHandle)(nil)
)

func (h *storageHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return readWindow(h.handle, h.window.Offset, h.window.Nbytes, dest, off), 0
}

func (h *storageHandle) Release(context.Context) syscall.Errno {
	h.handle.Release()
	return 0
}
