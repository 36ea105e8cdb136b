package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// MountedType returns the type of the topmost file system mounted on the absolute path, "" if none is.
func MountedType(path string) (string, error) {
	found := ""
	err := eachMountAt(path, func(_, kind string) { found = kind }) // later ones lie on top
	return found, err
}

// mountsAt returns the ids of the mounts at the absolute path; the last one is on top.
func mountsAt(path string) (ids []uint64, err error) {
	var bad error
	err = eachMountAt(path, func(id, _ string) {
		n, e := strconv.ParseUint(id, 10, 64)
		ids, bad = append(ids, n), errors.Join(bad, e)
	})
	return ids, errors.Join(err, bad)
}

func eachMountAt(path string, f func(id, kind string)) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 /root /mount/point options optional... - type source superoptions
		before, after, ok := strings.Cut(line, " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) >= 5 && len(types) >= 1 && unescape(fields[4]) == path {
			f(fields[0], types[0])
		}
	}
	return nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
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
