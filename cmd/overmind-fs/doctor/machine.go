package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// Machine is what is looked at besides the mounts.
type Machine struct {
	Root       string // where /proc, /sys, /etc and /dev are
	Kernel     string // as uname -r says
	UID        int
	Helper     bool              // fusermount3 is there
	Env        map[string]string // of the shell
	CacheRoot  string            // what --root or OVERMIND_ROOT says
	Version    string            // of this program
	CanReplace bool              // this user can mount --replace
	LargestFit uint64            // the largest arena of the mounts, bytes

	answering bool // a mount answers, so that its status says what the kernel can do
}

// ThisMachine gathers the facts. The caller fills in CacheRoot and Version.
func ThisMachine() (Machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, fmt.Errorf("uname: %w", err)
	}
	m := Machine{Root: "/", Kernel: unix.ByteSliceToString(name.Release[:]), UID: os.Geteuid(), Env: map[string]string{}}
	for _, e := range os.Environ() {
		key, value, _ := strings.Cut(e, "=")
		m.Env[key] = value
	}
	for _, helper := range []string{"fusermount3", "fusermount"} {
		if _, err := exec.LookPath(helper); err == nil {
			m.Helper = true
		}
	}
	return m, nil
}

func (m Machine) path(name string) string { return filepath.Join(m.Root, name) }

func (m Machine) read(name string) string {
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		return ""
	}
	return string(text)
}

func environment(m Machine) []Finding {
	var found []Finding
	if v := m.Env["OVERMIND_DISABLE"]; v != "" && v != "0" {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("OVERMIND_DISABLE is %q in this shell", v),
			Cost: "programs started here load as if the cache were not there", Fix: "unset OVERMIND_DISABLE",
		})
	}
	if m.CacheRoot == "" {
		found = append(found, Finding{
			Severity: Note, What: "neither --root nor OVERMIND_ROOT says where the cache is",
			Cost: "programs started here use no cache, unless OVERMIND_AUTOSTART=1",
			Fix:  "export OVERMIND_ROOT=DIR",
		})
	}
	return found
}

// Kernels from which on something works.
var (
	passthroughKernel = [2]int{6, 9}
	collapseKernel    = [2]int{6, 1} // MADV_COLLAPSE of memfds
)

// older says whether a kernel is older than another; of one that cannot be read it says no.
func older(release string, than [2]int) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major < than[0] || major == than[0] && minor < than[1]
}

func kernel(m Machine) []Finding {
	switch {
	case older(m.Kernel, collapseKernel):
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("Linux %s: no huge pages for arenas and no FUSE passthrough", m.Kernel),
			Cost: "arenas have small pages, and reach programs over the control socket only", Fix: "boot Linux 6.9 or newer",
		}}
	case older(m.Kernel, passthroughKernel):
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("Linux %s has no FUSE passthrough", m.Kernel),
			Cost: "arenas reach programs over the control socket only; where that fails, each program copies them",
			Fix:  "boot Linux 6.9 or newer",
		}}
	}
	return nil
}

func fuseDevice(m Machine) []Finding {
	f, err := os.OpenFile(m.path("dev/fuse"), os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
		return nil
	}
	bad := Finding{
		Severity: Error, What: err.Error(), Cost: "nothing can be mounted by this user; a plain folder works, without budget, pins and seals",
		Fix: "sudo chmod 666 /dev/fuse",
	}
	if os.IsNotExist(err) {
		bad.Fix = "sudo modprobe fuse; in a container: --device /dev/fuse"
	}
	if m.answering {
		bad.Severity = Note // somebody else has mounted
	}
	return []Finding{bad}
}

func fusermount(m Machine) []Finding {
	if m.UID == 0 {
		return nil
	}
	var found []Finding
	if !m.Helper {
		severity := Error
		if m.answering {
			severity = Note
		}
		found = append(found, Finding{
			Severity: severity, What: "fusermount3 is missing", Cost: "only root can mount and unmount",
			Fix: "sudo apt-get install fuse3",
		})
	}
	allowed := false
	for line := range strings.Lines(m.read("etc/fuse.conf")) {
		allowed = allowed || strings.TrimSpace(line) == "user_allow_other"
	}
	if !allowed {
		found = append(found, Finding{
			Severity: Note, What: "/etc/fuse.conf has no user_allow_other", Cost: "mount --allow-other is for root only",
			Fix: "echo user_allow_other | sudo tee -a /etc/fuse.conf",
		})
	}
	return found
}

// shellLimits looks at what programs started here inherit.
func shellLimits(m Machine) []Finding {
	limits := m.limits("self")
	if as := limits["Max address space"]; as.soft != 0 && as.soft < m.LargestFit {
		return []Finding{{
			Severity: Warning,
			What: fmt.Sprintf("programs started in this shell have %s of address space, the largest arena needs %s",
				humanize.IBytes(as.soft), humanize.IBytes(m.LargestFit)),
			Cost: "they cannot map it, and load without the cache", Fix: "ulimit -v unlimited",
		}}
	}
	return nil
}

func swap(m Machine) []Finding {
	areas := strings.Count(strings.TrimSpace(m.read("proc/swaps")), "\n")
	swappiness := strings.TrimSpace(m.read("proc/sys/vm/swappiness"))
	if areas == 0 || swappiness == "0" || swappiness == "1" {
		return nil
	}
	return []Finding{{
		Severity: Note, What: fmt.Sprintf("there is swap, and vm.swappiness is %s", swappiness),
		Cost: "models that are cached and not in use may be swapped out; the next load reads them from the disk",
		Fix:  "sudo sysctl vm.swappiness=1, or MemorySwapMax=0 in the unit of the daemon",
	}}
}

// strictOvercommit is a value of vm.overcommit_memory.
const strictOvercommit = "2"

func overcommit(m Machine) []Finding {
	if strings.TrimSpace(m.read("proc/sys/vm/overcommit_memory")) != strictOvercommit {
		return nil
	}
	return []Finding{{
		Severity: Warning, What: "vm.overcommit_memory is " + strictOvercommit,
		Cost: "the kernel counts what a program maps as if it were its own memory; when that is too much, it loads without the cache",
		Fix:  "sudo sysctl vm.overcommit_memory=0",
	}}
}

// packages looks into the active Python environment.
func packages(m Machine) []Finding {
	env := m.Env["VIRTUAL_ENV"]
	if env == "" {
		return nil
	}
	loader, helper := m.installed(env, "overmind_fs"), m.installed(env, "overmind_cext")
	switch {
	case loader == "":
		return []Finding{{
			Severity: Note, What: "the active Python environment has no overmind-fs", Cost: "its programs use no cache",
			Fix: "make install",
		}}
	case helper != loader:
		return []Finding{{
			Severity: Error, What: fmt.Sprintf("the active Python environment has overmind-fs %s and overmind-cext %q", loader, helper),
			Cost: "its programs load without the cache, or wrongly refuse entries", Fix: "make install",
		}}
	case !sameRelease(loader, m.Version):
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("the active Python environment has overmind-fs %s, this command is %s", loader, m.Version),
			Cost: "one may refuse what the other writes; loads go without the cache then", Fix: "make install",
		}}
	}
	return nil
}

// sameRelease compares without what follows a "+", such as the commit. A build without a version fits everything.
func sameRelease(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	numbered := b != "" && b[0] >= '0' && b[0] <= '9'
	return a == b || !numbered
}

// installed returns the version of a distribution, "" without one.
func (m Machine) installed(env, name string) string {
	found, _ := filepath.Glob(m.path(filepath.Join(env, "lib/python3*/site-packages", name+"-*.dist-info")))
	if len(found) == 0 {
		return ""
	}
	version, _ := strings.CutPrefix(filepath.Base(found[0]), name+"-")
	return strings.TrimSuffix(version, ".dist-info")
}
