package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// jsonFile is manifest.json of a published entry, rendered by every open. It never changes and has its true size.
type jsonFile struct {
	fusefs.Inode
	entry *store.Entry
}

var (
	_ fusefs.NodeGetattrer = (*jsonFile)(nil)
	_ fusefs.NodeSetattrer = (*jsonFile)(nil)
	_ fusefs.NodeOpener    = (*jsonFile)(nil)
)

func (j *jsonFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	fileAttr(&out.Attr, j.entry, j.entry.JSONSize(), j.entry.Created())
	out.SetTimeout(timeout(j.entry))
	return 0
}

func (j *jsonFile) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(store.ErrReadOnly)
}

func (j *jsonFile) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, toErrno(store.ErrReadOnly)
	}
	m := j.entry.Manifest()
	if m == nil || j.entry.State() != store.Published {
		return nil, 0, toErrno(store.ErrNotFound)
	}
	data, err := m.JSON()
	if err != nil {
		return nil, 0, toErrno(err)
	}
	return &generatedHandle{data: data}, fuse.FOPEN_KEEP_CACHE, 0
}
