package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// rootDir is the top of the mount. Its content is fixed.
type rootDir struct {
	dir
	control string // what the link to the socket says, "" for none
}

var (
	_ fusefs.NodeOnAdder   = (*rootDir)(nil)
	_ fusefs.NodeGetattrer = (*rootDir)(nil)
)

func newRoot(t *tree, control string) *rootDir { return &rootDir{dir{tree: t}, control} }

// OnAdd builds the fixed part of the tree.
func (r *rootDir) OnAdd(ctx context.Context) {
	status := &generatedFile{tree: r.tree, content: r.tree.statusJSON}
	entries := &generatedFile{tree: r.tree, content: r.tree.entriesJSON}
	metrics := &generatedFile{tree: r.tree, content: r.tree.metricsText}
	for name, c := range map[string]struct {
		node fusefs.InodeEmbedder
		attr fusefs.StableAttr
	}{
		"pipelines":   {&pipelinesDir{dir{tree: r.tree}}, folder(inoPipelines)},
		"staging":     {&stagingDir{dir{tree: r.tree}}, folder(inoStaging)},
		"locks":       {&locksDir{dir{tree: r.tree}}, folder(inoLocks)},
		"status.json": {status, regular(inoStatus)},
		EntriesName:   {entries, regular(inoEntries)},
		"metrics":     {metrics, regular(inoMetrics)},
	} {
		r.AddChild(name, r.NewPersistentInode(ctx, c.node, c.attr), false)
	}
	r.tree.pruner.watch(r.GetChild("pipelines"), r.GetChild("locks"))
	if r.control != "" {
		attr := fusefs.StableAttr{Mode: syscall.S_IFLNK, Ino: inoControl}
		r.AddChild("control", r.NewPersistentInode(ctx, &controlLink{tree: r.tree, path: r.control}, attr), false)
	}
}

func (r *rootDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	mode := uint32(0o700)
	if r.tree.shared {
		mode = 0o755
	}
	dirAttr(&out.Attr, mode, r.tree.owner, r.tree.started)
	out.SetTimeout(settled)
	return 0
}
