package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// pipelinesDir lists the published entries. Entries come by a rename from staging/ and go by rmdir.
type pipelinesDir struct {
	dir
}

var (
	_ fusefs.NodeLookuper  = (*pipelinesDir)(nil)
	_ fusefs.NodeReaddirer = (*pipelinesDir)(nil)
	_ fusefs.NodeGetattrer = (*pipelinesDir)(nil)
	_ fusefs.NodeRmdirer   = (*pipelinesDir)(nil)
)

// sharedMode is the mode of folders in which fillers make theirs. Under --allow-other the sticky bit keeps users from
// removing and replacing what is not theirs.
func (t *tree) sharedMode() uint32 {
	if t.shared {
		return 0o1777
	}
	return 0o755
}

func (p *pipelinesDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	dirAttr(&out.Attr, p.tree.sharedMode(), p.tree.owner, p.tree.started)
	return 0
}

// Lookup leaves the timeouts at zero, also of a miss: an entry can come or go at any moment.
func (p *pipelinesDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	e, err := p.tree.store.Published(name)
	if err != nil {
		p.tree.misses.Add(1)
		return nil, toErrno(err)
	}
	p.tree.pruner.saw(name)
	return newEntryDir(ctx, &p.Inode, p.tree, e, out), 0
}

func (p *pipelinesDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	var out []fuse.DirEntry
	for _, id := range p.tree.store.PublishedIDs() {
		out = append(out, fuse.DirEntry{Name: id, Mode: syscall.S_IFDIR})
	}
	return listing(out)
}

// Rmdir evicts, although the folder is not empty.
func (p *pipelinesDir) Rmdir(ctx context.Context, name string) syscall.Errno {
	return toErrno(p.tree.store.Evict(name, callerOf(ctx)))
}
