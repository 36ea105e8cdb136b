package main

import (
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// spareFiles are kept for all that is not an entry: requests, connections, clients that get a descriptor.
const spareFiles = 256

// raiseFileLimit takes all file descriptors that this process may have, since each arena is one, and so is each file of a
// fill and each small file on its way to another daemon, and returns how many of them entries and fills may take; 0 when that
// is unknown.
func raiseFileLimit(logger *slog.Logger) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		logger.Warn("the limit of open files is unknown", "error", err)
		return 0
	}
	most := limit.Max
	if text, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			most = n
		}
	}
	// Past the hard limit only with CAP_SYS_RESOURCE.
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})
	if err != nil {
		most = limit.Max
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})
	}
	if err != nil {
		logger.Warn("the limit of open files cannot be raised", "limit", limit.Cur, "error", err)
		most = limit.Cur
	}
	return int(min(most-min(most/4, spareFiles), 1<<30))
}
