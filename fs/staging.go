package fs

import (
	"context"
	"errors"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
)

// stagingDir lists the fills under way.
type stagingDir struct {
	dir
}

var (
	_ fusefs.NodeLookuper  = (*stagingDir)(nil)
	_ fusefs.NodeReaddirer = (*stagingDir)(nil)
	_ fusefs.NodeGetattrer = (*stagingDir)(nil)
	_ fusefs.NodeMkdirer   = (*stagingDir)(nil)
	_ fusefs.NodeRmdirer   = (*stagingDir)(nil)
	_ fusefs.NodeRenamer   = (*stagingDir)(nil)
)

func (s *stagingDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	dirAttr(&out.Attr, s.tree.sharedMode(), s.tree.owner, s.tree.started)
	return 0
}

func (s *stagingDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	e, err := s.tree.store.Staging(name)
	if err != nil {
		return nil, toErrno(err)
	}
	return newEntryDir(ctx, &s.Inode, s.tree, e, out), 0
}

func (s *stagingDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	var out []fuse.DirEntry
	for _, id := range s.tree.store.StagingIDs() {
		out = append(out, fuse.DirEntry{Name: id, Mode: syscall.S_IFDIR})
	}
	return listing(out)
}

// Mkdir begins a fill.
func (s *stagingDir) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	caller := callerOf(ctx)
	if err := s.tree.mayFill(name, caller); err != nil {
		return nil, toErrno(err)
	}
	e, err := s.tree.store.Begin(name, caller)
	if err != nil {
		return nil, toErrno(err)
	}
	if s.tree.shared && caller.UID != 0 && !e.HasLock() {
		return nil, toErrno(errors.Join(store.ErrNotOwner, s.tree.store.Drop(name, caller))) // nobody would clear it away
	}
	return newEntryDir(ctx, &s.Inode, s.tree, e, out), 0
}

// Rmdir drops a fill, although the folder is not empty.
func (s *stagingDir) Rmdir(ctx context.Context, name string) syscall.Errno {
	return toErrno(s.tree.store.Drop(name, callerOf(ctx)))
}

// Rename from staging/<id> to pipelines/<id> commits. The wait in it is short and must not end half-way because the
// caller got a signal: rename(2) has no EINTR.
func (s *stagingDir) Rename(ctx context.Context, name string, newParent fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if _, ok := newParent.(*pipelinesDir); !ok {
		if _, same := newParent.(*stagingDir); same {
			return toErrno(errForbidden)
		}
		return toErrno(errOtherFolder)
	}
	if newName != name {
		return toErrno(errForbidden) // the name is part of the manifest
	}
	if flags&^unix.RENAME_NOREPLACE != 0 {
		return toErrno(errArgument)
	}
	err := s.tree.store.Commit(context.WithoutCancel(ctx), name, callerOf(ctx), flags&unix.RENAME_NOREPLACE != 0)
	s.tree.pruner.saw(name)
	s.tree.giveBack.worked()
	return toErrno(err)
}
