package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// entryDir is staging/<id> and, after the rename, pipelines/<id>: one inode, as a rename keeps it.
type entryDir struct {
	dir
	entry *store.Entry
}

var (
	_ fusefs.NodeLookuper  = (*entryDir)(nil)
	_ fusefs.NodeReaddirer = (*entryDir)(nil)
	_ fusefs.NodeGetattrer = (*entryDir)(nil)
	_ fusefs.NodeSetattrer = (*entryDir)(nil)
	_ fusefs.NodeMkdirer   = (*entryDir)(nil)
	_ fusefs.NodeCreater   = (*entryDir)(nil)
	_ fusefs.NodeUnlinker  = (*entryDir)(nil)
	_ fusefs.NodeRmdirer   = (*entryDir)(nil)
)

func newEntryDir(ctx context.Context, parent *fusefs.Inode, t *tree, e *store.Entry, out *fuse.EntryOut) *fusefs.Inode {
	dirAttr(&out.Attr, t.entryMode(), e.Owner(), e.Created())
	return parent.NewInode(ctx, &entryDir{dir{tree: t}, e}, folder(serialIno(e.Serial())))
}

func (d *entryDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	dirAttr(&out.Attr, d.tree.entryMode(), d.entry.Owner(), d.entry.Created())
	return 0
}

// Setattr is refused; the error says whether it is too late or was never possible.
func (d *entryDir) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(refusal(d.entry))
}

func refusal(e *store.Entry) error {
	if e.State() == store.Staging {
		return errForbidden
	}
	return store.ErrReadOnly
}

func (d *entryDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	e := d.entry
	if e.Moved() {
		return nil, toErrno(store.ErrSuperseded)
	}
	switch name {
	case store.TensorsName:
		if !e.HasTensors() {
			return nil, toErrno(store.ErrNotFound)
		}
		return d.subfolder(ctx, &tensorsDir{dir{tree: d.tree}, e}, subTensors, out), 0
	case store.StoragesName:
		if !e.Shows("", name) {
			return nil, toErrno(store.ErrNotFound)
		}
		return d.subfolder(ctx, &storagesDir{dir{tree: d.tree}, e}, subStorages, out), 0
	case store.JSONName:
		if !e.Shows("", name) {
			return nil, toErrno(store.ErrNotFound)
		}
		setTimeouts(out, timeout(e))
		fileAttr(&out.Attr, e, e.JSONSize(), e.Created())
		return d.NewInode(ctx, &jsonFile{entry: e}, regular(serialIno(e.Serial())+subJSON)), 0
	}
	f, err := e.File("", name)
	if err != nil {
		return nil, toErrno(err)
	}
	return newBlobFile(ctx, &d.Inode, d.tree, f, out), 0
}

func (d *entryDir) subfolder(ctx context.Context, node fusefs.InodeEmbedder, sub uint64, out *fuse.EntryOut) *fusefs.Inode {
	setTimeouts(out, timeout(d.entry))
	dirAttr(&out.Attr, 0o755, d.entry.Owner(), d.entry.Created())
	return d.NewInode(ctx, node, folder(serialIno(d.entry.Serial())+sub))
}

func (d *entryDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	var out []fuse.DirEntry
	for _, name := range d.entry.FileNames("") {
		out = append(out, fuse.DirEntry{Name: name, Mode: syscall.S_IFREG})
	}
	if d.entry.Shows("", store.JSONName) {
		out = append(out, fuse.DirEntry{Name: store.JSONName, Mode: syscall.S_IFREG})
	}
	if d.entry.HasTensors() {
		out = append(out, fuse.DirEntry{Name: store.TensorsName, Mode: syscall.S_IFDIR})
	}
	if d.entry.Shows("", store.StoragesName) {
		out = append(out, fuse.DirEntry{Name: store.StoragesName, Mode: syscall.S_IFDIR})
	}
	return listing(out)
}

// Mkdir makes tensors/ in a staging.
func (d *entryDir) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if name != store.TensorsName {
		return nil, toErrno(refusal(d.entry))
	}
	if err := d.entry.MakeTensors(callerOf(ctx)); err != nil {
		return nil, toErrno(err)
	}
	return d.subfolder(ctx, &tensorsDir{dir{tree: d.tree}, d.entry}, subTensors, out), 0
}

// Create makes manifest or structure.pkl in a staging.
func (d *entryDir) Create(ctx context.Context, name string, _ uint32, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	if d.entry.State() != store.Staging {
		return nil, nil, 0, toErrno(store.ErrReadOnly)
	}
	f, h, err := d.entry.CreateBlob(name, callerOf(ctx))
	if err != nil {
		return nil, nil, 0, toErrno(err)
	}
	return newBlobFile(ctx, &d.Inode, d.tree, f, out), &fileHandle{tree: d.tree, handle: h}, fuse.FOPEN_KEEP_CACHE, 0
}

func (d *entryDir) Unlink(ctx context.Context, name string) syscall.Errno {
	return toErrno(d.entry.Unlink("", name, callerOf(ctx)))
}

func (d *entryDir) Rmdir(ctx context.Context, name string) syscall.Errno {
	return toErrno(d.entry.RemoveDir(name, callerOf(ctx)))
}
