package fs

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// storagesDir shows each storage of a published entry as a file of its own. The inodes are made when they are looked
// up; a pipeline has thousands of storages.
type storagesDir struct {
	dir
	entry *store.Entry
}

var (
	_ fusefs.NodeLookuper  = (*storagesDir)(nil)
	_ fusefs.NodeReaddirer = (*storagesDir)(nil)
	_ fusefs.NodeGetattrer = (*storagesDir)(nil)
	_ fusefs.NodeSetattrer = (*storagesDir)(nil)
	_ fusefs.NodeCreater   = (*storagesDir)(nil)
	_ fusefs.NodeUnlinker  = (*storagesDir)(nil)
)

// maxWindowName bounds the names in bytes; file names end at 255.
const maxWindowName = 200

// windowName is the file name of storage n: its number and what is usable of its name.
func windowName(m *schema.Manifest, n int) string {
	number := strconv.Itoa(n)
	name := m.StorageNames[n]
	if name == "" {
		return number
	}
	clean := strings.Map(func(r rune) rune {
		if r == '/' || r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
	for len(clean) > maxWindowName {
		_, last := utf8.DecodeLastRuneInString(clean)
		clean = clean[:len(clean)-last]
	}
	return number + "." + clean
}

// windowIndex finds the storage of a file name.
func windowIndex(m *schema.Manifest, name string) (int, error) {
	number, _, _ := strings.Cut(name, ".")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= windows(m) || windowName(m, n) != name {
		return 0, store.ErrNotFound
	}
	return n, nil
}

// windows is how many storages are shown: all, unless inode numbers run out.
func windows(m *schema.Manifest) int { return min(len(m.Storages), maxWindows) }

func (d *storagesDir) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	dirAttr(&out.Attr, 0o755, d.entry.Owner(), d.entry.Created())
	return 0
}

func (d *storagesDir) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return toErrno(refusal(d.entry))
}

func (d *storagesDir) Create(context.Context, string, uint32, uint32, *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, toErrno(store.ErrReadOnly)
}

func (d *storagesDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	m := d.entry.Manifest()
	if m == nil {
		return nil, toErrno(store.ErrNotFound)
	}
	n, err := windowIndex(m, name)
	if err == nil && !d.entry.Shows(store.StoragesName, name) {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, toErrno(err)
	}
	node := &storageFile{entry: d.entry, window: m.Storages[n]}
	if node.window.Nbytes > 0 {
		node.arena = m.Arenas[node.window.Arena].Name
	}
	setTimeouts(out, timeout(d.entry))
	node.attr(&out.Attr)
	return d.NewInode(ctx, node, regular(serialIno(d.entry.Serial())+subWindow+uint64(n))), 0
}

func (d *storagesDir) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	m := d.entry.Manifest()
	if m == nil {
		return listing(nil)
	}
	whole := d.entry.State() == store.Published
	var out []fuse.DirEntry
	for n := range windows(m) {
		name := windowName(m, n)
		if whole || d.entry.Shows(store.StoragesName, name) {
			out = append(out, fuse.DirEntry{Name: name, Mode: syscall.S_IFREG})
		}
	}
	return listing(out)
}

func (d *storagesDir) Unlink(ctx context.Context, name string) syscall.Errno {
	return toErrno(d.entry.Unlink(store.StoragesName, name, callerOf(ctx)))
}
