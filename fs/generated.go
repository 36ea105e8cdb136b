package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// generatedFile is status.json, entries.json or metrics: made anew by every open, read past the page cache, size 0 as in /proc.
type generatedFile struct {
	fusefs.Inode
	tree    *tree
	content func() ([]byte, error)
}

var (
	_ fusefs.NodeGetattrer = (*generatedFile)(nil)
	_ fusefs.NodeSetattrer = (*generatedFile)(nil)
	_ fusefs.NodeOpener    = (*generatedFile)(nil)
)

func (g *generatedFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o444
	out.Nlink = 1
	out.Uid, out.Gid = g.tree.owner.UID, g.tree.owner.GID
	setTimes(&out.Attr, g.tree.started)
	return 0
}

func (g *generatedFile) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(errForbidden)
}

func (g *generatedFile) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, toErrno(errForbidden)
	}
	data, err := g.content()
	if err != nil {
		g.tree.log.Error("cannot generate a file", "error", err)
		return nil, 0, toErrno(err)
	}
	const large = 1 << 18
	if len(data) > large {
		g.tree.giveBack.worked()
	}
	return &generatedHandle{data: data}, fuse.FOPEN_DIRECT_IO, 0
}

// generatedHandle is the content as it was at open.
type generatedHandle struct {
	noFlush
	data []byte
}

var _ fusefs.FileReader = (*generatedHandle)(nil)

func (h *generatedHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	rest := h.data[min(uint64(off), uint64(len(h.data))):]
	return fuse.ReadResultData(rest[:min(len(rest), len(dest))]), 0
}
