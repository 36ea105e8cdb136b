package fstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Memfds counts the memfds of entries that a process has open.
func Memfds(pid int) (int, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	n := 0
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, "/memfd:overmind:") {
			n++
		}
	}
	return n, err
}
