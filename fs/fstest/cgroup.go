package fstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is a memory cgroup made for a test.
type Cgroup struct {
	Dir     string
	Version int
}

// NewCgroup makes a cgroup whose processes may have limit bytes of memory, without swap. The error says why this machine
// does not allow it.
func NewCgroup(limit uint64) (*Cgroup, error) {
	name := fmt.Sprintf("overmind-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var errs []error
	for _, c := range []struct {
		root, limit, swap, unswapped string
		version                      int
	}{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max", "0", 2},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness", "0", 1},
	} {
		if c.version == 2 {
			// Fails where it is on already for good, or cannot be; the limit then says which.
			_ = os.WriteFile(filepath.Join(c.root, "cgroup.subtree_control"), []byte("+memory"), 0)
		}
		g := &Cgroup{Dir: filepath.Join(c.root, name), Version: c.version}
		var st unix.Statfs_t
		if err := unix.Statfs(c.root, &st); err != nil || (st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC) {
			errs = append(errs, fmt.Errorf("no memory cgroup of version %d at %s", c.version, c.root))
			continue
		}
		if err := os.Mkdir(g.Dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.WriteFile(filepath.Join(g.Dir, c.limit), strconv.AppendUint(nil, limit, 10), 0); err != nil {
			errs = append(errs, err, g.Remove())
			continue
		}
		_ = os.WriteFile(filepath.Join(g.Dir, c.swap), []byte(c.unswapped), 0) // without swap there is no such file
		return g, nil
	}
	return nil, errors.Join(errs...)
}

// Contain makes a command, which must not have been started, start inside the cgroup.
func (g *Cgroup) Contain(cmd *exec.Cmd) error {
	program, err := filepath.EvalSymlinks(cmd.Path) // of this process, if it is /proc/self/exe
	if err != nil {
		return err
	}
	script := `echo $$ >"$0"/cgroup.procs && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, g.Dir, program}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return nil
}

// OOMKills is how many processes the kernel has killed for the limit.
func (g *Cgroup) OOMKills() (int, error) {
	name := "memory.events"
	if g.Version == 1 {
		name = "memory.oom_control"
	}
	text, err := os.ReadFile(filepath.Join(g.Dir, name))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, fmt.Errorf("%s does not count kills", name)
}

// Usage is how many bytes are charged to the cgroup: memory of its processes, page cache and memfds.
func (g *Cgroup) Usage() (uint64, error) {
	name := "memory.current"
	if g.Version == 1 {
		name = "memory.usage_in_bytes"
	}
	text, err := os.ReadFile(filepath.Join(g.Dir, name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// Remove removes the cgroup once its processes have ended.
func (g *Cgroup) Remove() error {
	err := unix.Rmdir(g.Dir)
	for try := 0; errors.Is(err, unix.EBUSY) && try < 500; try++ {
		time.Sleep(10 * time.Millisecond)
		err = unix.Rmdir(g.Dir)
	}
	return err
}
