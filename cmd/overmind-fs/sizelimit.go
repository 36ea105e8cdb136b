package main

import (
	"fmt"
	"log/slog"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// leastAddressSpace is what the Go runtime and its threads reserve, with some room. Where a thread gets no stack the
// whole process ends.
const leastAddressSpace = 2 << 30

// raiseSizeLimits takes what this process may have of file sizes, which are those of arenas, and of address space.
func raiseSizeLimits(logger *slog.Logger) error {
	if space := raised(unix.RLIMIT_AS); space < leastAddressSpace {
		return fmt.Errorf("the limit of address space is %s, and the daemon needs %s: ulimit -v unlimited, or LimitAS=infinity",
			humanize.IBytes(space), humanize.IBytes(leastAddressSpace))
	}
	if size := raised(unix.RLIMIT_FSIZE); size != unix.RLIM_INFINITY {
		logger.Warn("what has larger files is not cached: ulimit -f unlimited, or LimitFSIZE=infinity", "limit", humanize.IBytes(size))
	}
	return nil
}

// raised removes a limit where that is allowed, and else raises it as far as it may be; it returns what it is then.
func raised(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return unix.RLIM_INFINITY // unknown: no reason to do without
	}
	for _, most := range []uint64{unix.RLIM_INFINITY, limit.Max} {
		if unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}) == nil {
			return most
		}
	}
	return limit.Cur
}
