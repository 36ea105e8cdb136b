// Package fdpass hands the memfds of arenas to other processes over a Unix socket, for mounts where the kernel does not
// serve the arenas itself. docs/protocol.md has the messages.
//
// A connection is one request and one answer. Whoever connects may be slow, silent or hostile: a connection lives for
// two seconds at most, there are only so many, each has one small buffer, and nothing is locked while one waits. Who may
// have which arena is decided by the caller of this package.
package fdpass
