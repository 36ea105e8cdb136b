package fs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"overmind-fs/fs/store"
)

// callerOf returns who sent the request. The kernel names a thread; the store wants the process.
func callerOf(ctx context.Context) store.Caller {
	c, ok := fuse.FromContext(ctx)
	if !ok {
		return store.Caller{}
	}
	return store.Caller{UID: c.Uid, GID: c.Gid, PID: processOf(int(c.Pid))}
}

// processOf returns the process of a thread, or the thread itself when it cannot be looked up. It is 0 when the thread
// lives in a PID namespace that cannot be seen from here.
func processOf(tid int) int {
	if tid == 0 {
		return 0
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "Tgid:"); ok {
			if pid, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				return pid
			}
		}
	}
	return tid
}
