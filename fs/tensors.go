package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// tensorsDir holds the arenas of an entry.
type tensorsDir struct {
	dir
	entry *store.Entry
}

var (
	_ fusefs.NodeLookuper  = (*tensorsDir)(nil)
	_ fusefs.NodeReaddirer = (*tensorsDir)(nil)
	_ fusefs.NodeGetattrer = (*tensorsDir)(nil)
	_ fusefs.NodeSetattrer = (*tensorsDir)(nil)
	_ fusefs.NodeCreater   = (*tensorsDir)(nil)
	_ fusefs.NodeUnlinker  = (*tensorsDir)(nil)
	_ fusefs.NodeLinker    = (*tensorsDir)(nil)
)

func (d *tensorsDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	dirAttr(&out.Attr, 0o755, d.entry.Owner(), d.entry.Created())
	return 0
}

func (d *tensorsDir) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(refusal(d.entry))
}

func (d *tensorsDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	f, err := d.entry.File(store.TensorsName, name)
	if err != nil {
		return nil, toErrno(err)
	}
	return newArenaFile(ctx, &d.Inode, d.tree, f, out), 0
}

func (d *tensorsDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	var out []fuse.DirEntry
	for _, name := range d.entry.FileNames(store.TensorsName) {
		out = append(out, fuse.DirEntry{Name: name, Mode: syscall.S_IFREG})
	}
	return listing(out)
}

// Create makes an arena in a staging.
func (d *tensorsDir) Create(ctx context.Context, name string, _ uint32, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	if d.entry.State() != store.Staging {
		return nil, nil, 0, toErrno(store.ErrReadOnly)
	}
	f, h, err := d.entry.CreateArena(name, callerOf(ctx))
	if err != nil {
		return nil, nil, 0, toErrno(err)
	}
	node := newArenaFile(ctx, &d.Inode, d.tree, f, out)
	return node, newArenaHandle(d.tree, h, node), fuse.FOPEN_KEEP_CACHE, 0
}

// Link puts an arena of a published entry into a staging, where it is another inode with the same bytes: what an entry
// holds is never shared by name.
func (d *tensorsDir) Link(ctx context.Context, target fusefs.InodeEmbedder, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	from, ok := target.(*arenaFile)
	if !ok {
		return nil, toErrno(errForbidden)
	}
	f, err := d.entry.Link(from.file, name, callerOf(ctx))
	if err != nil {
		return nil, toErrno(err)
	}
	return newArenaFile(ctx, &d.Inode, d.tree, f, out), 0
}

func (d *tensorsDir) Unlink(ctx context.Context, name string) syscall.Errno {
	return toErrno(d.entry.Unlink(store.TensorsName, name, callerOf(ctx)))
}
