package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FSType is the type of the mount in /proc/self/mountinfo.
const (
	subtype = "overmind-fs"
	FSType  = "fuse." + subtype
)

// Health is what a look at a mount point finds.
type Health int

// The results of ProbeMount.
const (
	NotMounted   Health = iota // a plain folder, or nothing
	OtherMount                 // another file system
	AliveMount                 // an overmind mount that answers
	DeadMount                  // an overmind mount whose daemon is gone
	SilentMount                // an overmind mount that does not answer in time
	probeTimeout = 2 * time.Second
)

// MountPoint returns the absolute form of path that mountinfo would show. Only the parent is resolved: to look at the
// last element itself would ask a daemon that may not answer.
func MountPoint(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

// mountPoint is a line of /proc/self/mountinfo.
type mountPoint struct {
	id         uint64
	path, kind string // kind is the type of the file system
}

// mountPoints lists the mounts that this process sees; of those at one path the last lies on top.
func mountPoints() ([]mountPoint, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	// The octal escapes of the kernel.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []mountPoint
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 /root /mount/point options optional... - type source superoptions
		before, after, _ := strings.Cut(line, " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(types) < 1 {
			continue
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/self/mountinfo: %w", err)
		}
		found = append(found, mountPoint{id, unescape.Replace(fields[4]), types[0]})
	}
	return found, nil
}

// MountPoints lists where this process sees overmind file systems, each place once.
func MountPoints() ([]string, error) {
	all, err := mountPoints()
	var found []string
	for _, m := range all {
		if m.kind == FSType && !slices.Contains(found, m.path) {
			found = append(found, m.path)
		}
	}
	return found, err
}

// MountedType returns the type of the topmost file system mounted on the absolute path, "" if none is.
func MountedType(path string) (string, error) {
	all, err := mountPoints()
	kind := ""
	for _, m := range all {
		if m.path == path {
			kind = m.kind
		}
	}
	return kind, err
}

// mountsAt returns the ids of the mounts at the absolute path; the last one is on top.
func mountsAt(path string) ([]uint64, error) {
	all, err := mountPoints()
	var ids []uint64
	for _, m := range all {
		if m.path == path {
			ids = append(ids, m.id)
		}
	}
	return ids, err
}

// ProbeMount looks at the absolute path.
func ProbeMount(path string) (Health, error) {
	kind, err := MountedType(path)
	switch {
	case err != nil:
		return NotMounted, err
	case kind == "":
		return NotMounted, nil
	case kind != FSType:
		return OtherMount, nil
	}
	// statfs always asks the daemon; attributes may come from the kernel's memory, long after it died.
	type answer struct {
		magic int64
		err   error
	}
	result := make(chan answer, 1)
	go func() {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		result <- answer{st.Type, err}
	}()
	select {
	case a := <-result:
		switch {
		case a.err == nil && a.magic != unix.FUSE_SUPER_MAGIC:
			return NotMounted, nil // it was unmounted in between
		case a.err == nil:
			return AliveMount, nil
		case errors.Is(a.err, unix.ENOTCONN), errors.Is(a.err, unix.ECONNABORTED):
			return DeadMount, nil
		default:
			return AliveMount, fmt.Errorf("statfs %s: %w", path, a.err)
		}
	case <-time.After(probeTimeout):
		return SilentMount, nil
	}
}
