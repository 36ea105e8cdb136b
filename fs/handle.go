package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// fileHandle is an open manifest or structure.pkl; the daemon moves its bytes.
type fileHandle struct {
	noFlush
	tree   *tree
	handle *store.Handle
}

var (
	_ fusefs.FileReader   = (*fileHandle)(nil)
	_ fusefs.FileWriter   = (*fileHandle)(nil)
	_ fusefs.FileReleaser = (*fileHandle)(nil)
	_ fusefs.FileFsyncer  = (*fileHandle)(nil)
)

func (h *fileHandle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return readWindow(h.handle, 0, h.handle.File().Size(), dest, off), 0
}

func (h *fileHandle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	n, err := h.handle.WriteAt(data, off)
	return uint32(n), toErrno(err)
}

// Fsync has nothing to do: memory is all there is.
func (h *fileHandle) Fsync(context.Context, uint32) syscall.Errno { return 0 }

func (h *fileHandle) Release(context.Context) syscall.Errno {
	h.handle.Release()
	h.tree.pruner.saw(h.handle.File().Entry().ID())
	return 0
}

// readWindow answers a read at off in the size bytes of the file that start at base.
func readWindow(h *store.Handle, base, size uint64, dest []byte, off int64) fuse.ReadResult {
	if uint64(off) >= size {
		return fuse.ReadResultData(nil)
	}
	n := min(uint64(len(dest)), size-uint64(off))
	return fuse.ReadResultFd(uintptr(h.FD()), h.Base()+int64(base)+off, int(n))
}

// arenaHandle is an open arena. With passthrough the kernel reads, writes and maps the memfd itself; otherwise the
// bytes come through the daemon and the page cache.
type arenaHandle struct {
	fileHandle
	node *fusefs.Inode
}

var (
	_ fusefs.FileReader          = (*arenaHandle)(nil)
	_ fusefs.FileWriter          = (*arenaHandle)(nil)
	_ fusefs.FileReleaser        = (*arenaHandle)(nil)
	_ fusefs.FilePassthroughFder = (*arenaHandle)(nil)
)

func newArenaHandle(t *tree, h *store.Handle, node *fusefs.Inode) *arenaHandle {
	return &arenaHandle{fileHandle{tree: t, handle: h}, node}
}

// Release ends a lease. The kernel keeps the names of files that were open when their entry was removed, until it runs
// out of memory, and with them our nodes; so it is told that they are gone.
func (h *arenaHandle) Release(ctx context.Context) syscall.Errno {
	errno := h.fileHandle.Release(ctx)
	if h.handle.File().Entry().State() == store.Gone {
		go forget(h.node)
	}
	return errno
}

// forget has the kernel drop the name of a node in an entry, and of the folder that it is in. Not to be called while
// the kernel waits for an answer.
func forget(node *fusefs.Inode) {
	for range 2 {
		name, parent := node.Parent()
		if parent == nil {
			return
		}
		_ = parent.NotifyEntry(name) // it may have gone by itself
		node = parent
	}
}

// PassthroughFd answers the same for every handle of a mount, because the kernel allows one mode for each inode.
func (h *arenaHandle) PassthroughFd() (int, bool) {
	return h.handle.FD(), h.tree.passthrough.Active
}

func (h *arenaHandle) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	h.tree.arenaReads.Add(1)
	return h.fileHandle.Read(ctx, dest, off)
}

func (h *arenaHandle) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	h.tree.arenaWrites.Add(1)
	return h.fileHandle.Write(ctx, data, off)
}
