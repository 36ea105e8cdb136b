// Package fs shows a store as a FUSE file system. docs/protocol.md describes the tree and what its operations mean.
//
// The nodes are thin: each translates one kind of file or folder to calls of package store, and toErrno is the only
// place that maps errors to numbers. Nodes hold no state of their own that has to survive a FORGET; inode numbers are
// derived from the serial numbers of entries and files, so the kernel sees one inode for each however often it looks
// it up, and the same before and after a commit.
//
// The process that serves a mount must never open or map a file of that mount.
package fs
