package fs

import (
	"hash/fnv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"overmind-fs/fs/store"
)

// Inode numbers. The fixed ones are small, those of entries and files are multiples of 1<<serialShift, those of what
// hangs on an entry follow its number, and those of locks have bit 62 set.
const (
	inoPipelines = 2 + iota
	inoStaging
	inoLocks
	inoStatus
	inoMetrics
	inoControl
	inoEntries

	serialShift = 28

	// offsets from the number of an entry
	subTensors  = 1
	subStorages = 2
	subJSON     = 3
	subWindow   = 16 // + index of the storage

	maxWindows = 1<<serialShift - subWindow

	lockBit = 1 << 62
)

func serialIno(serial uint64) uint64 { return serial << serialShift }

// lockIno derives the inode number of a lock from its name, so that every handle on it, at any time, is one on the
// same inode: flock works on inodes. No table can get out of step with the kernel that way. Two names that share a
// number (one pair in 2^62) would share a lock, which is slow and otherwise harmless.
func lockIno(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return lockBit | h.Sum64()&(lockBit-1)
}

// settled is how long the kernel may remember what never changes.
const settled = time.Hour

func setTimes(a *fuse.Attr, t time.Time) {
	a.SetTimes(&t, &t, &t)
}

// dirAttr fills the attributes of a folder.
func dirAttr(a *fuse.Attr, mode uint32, owner store.Caller, t time.Time) {
	a.Mode = syscall.S_IFDIR | mode
	a.Nlink = 2
	a.Uid, a.Gid = owner.UID, owner.GID
	setTimes(a, t)
}

// fileAttr fills the attributes of a file in an entry.
func fileAttr(a *fuse.Attr, e *store.Entry, size uint64, t time.Time) {
	a.Mode = syscall.S_IFREG | 0o444
	if e.State() == store.Staging {
		a.Mode = syscall.S_IFREG | 0o644
	}
	a.Nlink = 1
	a.Uid, a.Gid = e.Owner().UID, e.Owner().GID
	a.Size = size
	a.Blksize = 4096
	setTimes(a, t)
}

// timeout is how long the kernel may remember names and attributes in an entry: only while nothing in it can change.
func timeout(e *store.Entry) time.Duration {
	if e.State() == store.Published {
		return settled
	}
	return 0
}

func setTimeouts(out *fuse.EntryOut, d time.Duration) {
	out.SetEntryTimeout(d)
	out.SetAttrTimeout(d)
}

func regular(ino uint64) fusefs.StableAttr {
	return fusefs.StableAttr{Mode: syscall.S_IFREG, Ino: ino}
}

func folder(ino uint64) fusefs.StableAttr {
	return fusefs.StableAttr{Mode: syscall.S_IFDIR, Ino: ino}
}
