package fs

import (
	"context"
	"strconv"
	"strings"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"

	"overmind-fs/fs/store"
)

var (
	_ fusefs.NodeGetxattrer    = (*entryDir)(nil)
	_ fusefs.NodeSetxattrer    = (*entryDir)(nil)
	_ fusefs.NodeListxattrer   = (*entryDir)(nil)
	_ fusefs.NodeRemovexattrer = (*entryDir)(nil)
	_ fusefs.NodeGetxattrer    = (*pipelinesDir)(nil)
)

// Extended attributes of a published entry.
const (
	AttrPrefix    = "user.overmind."
	AttrPinned    = AttrPrefix + "pinned"
	AttrHits      = AttrPrefix + "hits"
	AttrLeases    = AttrPrefix + "leases"
	AttrLeasePIDs = AttrPrefix + "lease_pids"
	AttrBytes     = AttrPrefix + "bytes"
	AttrShared    = AttrPrefix + "shared"
	AttrLastUse   = AttrPrefix + "last_use"
	// AttrReserve is of a staging, and can only be set: how many bytes the fill will take, in decimal.
	AttrReserve = AttrPrefix + "reserve"
	// AttrArenas is of pipelines/, with a size in bytes behind it: the arenas of the caller that have that size, as
	// id/name, one in a line, newest first, maxAlike at most.
	AttrArenas = AttrPrefix + "arenas."
)

// maxAlike is how many arenas of one size a filler is told of. Names have 300 bytes at most, a value 64 KiB.
const maxAlike = 64

var attributes = []struct {
	name  string
	value func(store.Info) string
}{
	{AttrPinned, func(i store.Info) string {
		if i.Pinned {
			return "1"
		}
		return "0"
	}},
	{AttrHits, func(i store.Info) string { return strconv.FormatUint(i.Hits, 10) }},
	{AttrLeases, func(i store.Info) string { return strconv.Itoa(i.Leases) }},
	{AttrLeasePIDs, func(i store.Info) string {
		pids := make([]string, len(i.LeasePIDs))
		for k, pid := range i.LeasePIDs {
			pids[k] = strconv.Itoa(pid)
		}
		return strings.Join(pids, ",")
	}},
	{AttrBytes, func(i store.Info) string { return strconv.FormatUint(i.Bytes, 10) }},
	{AttrShared, func(i store.Info) string { return strconv.FormatUint(i.Shared, 10) }},
	{AttrLastUse, func(i store.Info) string { return strconv.FormatInt(i.LastUse.Unix(), 10) }},
}

// answer copies a value, or only tells its size when dest is too small.
func answer(value string, dest []byte) (uint32, syscall.Errno) {
	if len(dest) < len(value) {
		return uint32(len(value)), toErrno(errRange)
	}
	return uint32(copy(dest, value)), 0
}

// Getxattr reads one attribute.
func (d *entryDir) Getxattr(_ context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	info := d.entry.Info()
	if info.State == store.Published {
		for _, a := range attributes {
			if a.name == attr {
				return answer(a.value(info), dest)
			}
		}
	}
	return 0, toErrno(errNoAttribute)
}

// Getxattr finds the arenas that a new one may be equal to, see AttrArenas.
func (p *pipelinesDir) Getxattr(ctx context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	size, asked := strings.CutPrefix(attr, AttrArenas)
	n, err := strconv.ParseUint(size, 10, 63)
	if !asked || err != nil {
		return 0, toErrno(errNoAttribute)
	}
	var lines strings.Builder
	for _, a := range p.tree.store.ArenasOfSize(callerOf(ctx).UID, n, maxAlike) {
		lines.WriteString(a.ID + "/" + a.Name + "\n")
	}
	return answer(lines.String(), dest)
}

// Listxattr lists the attributes that are readable.
func (d *entryDir) Listxattr(_ context.Context, dest []byte) (uint32, syscall.Errno) {
	if d.entry.State() != store.Published {
		return 0, 0
	}
	var names strings.Builder
	for _, a := range attributes {
		names.WriteString(a.name + "\x00")
	}
	return answer(names.String(), dest)
}

// Setxattr pins and unpins, and reserves room for a fill.
func (d *entryDir) Setxattr(ctx context.Context, attr string, data []byte, _ uint32) syscall.Errno {
	if attr == AttrReserve {
		n, err := strconv.ParseUint(string(data), 10, 63)
		if err != nil {
			return toErrno(errArgument)
		}
		return toErrno(d.entry.Reserve(n, callerOf(ctx)))
	}
	if attr != AttrPinned {
		if strings.HasPrefix(attr, AttrPrefix) {
			return toErrno(errForbidden)
		}
		return toErrno(errUnsupported)
	}
	switch string(data) {
	case "1", "0":
		return toErrno(d.entry.SetPinned(callerOf(ctx), string(data) == "1"))
	default:
		return toErrno(errArgument)
	}
}

// Removexattr is refused: all attributes always exist.
func (d *entryDir) Removexattr(_ context.Context, attr string) syscall.Errno {
	if strings.HasPrefix(attr, AttrPrefix) {
		return toErrno(errForbidden)
	}
	return toErrno(errUnsupported)
}
