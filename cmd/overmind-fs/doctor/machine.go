package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

// Machine is what is looked at besides the mounts.
type Machine struct {
	Root       string // where /proc, /sys, /etc and /dev are
	Kernel     string // as uname -r says
	UID        int
	Mounting   error             // what this process lacks to mount
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
	m.Mounting = overmindfs.MayMount("", false)
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

// mounting says what this user lacks to mount.
func mounting(m Machine) []Finding {
	var missing *overmindfs.MissingError
	if !errors.As(m.Mounting, &missing) {
		return nil
	}
	f := Finding{
		Severity: Error, What: missing.What, Fix: missing.Fix,
		Cost: "this user cannot mount a cache; a plain folder works, without budget, pins and seals",
	}
	if m.answering {
		f.Severity = Note // somebody else has mounted
	}
	return []Finding{f}
}

func fuseConf(m Machine) []Finding {
	if m.UID == 0 || overmindfs.AllowsOther(m.path("etc/fuse.conf")) {
		return nil
	}
	return []Finding{{
		Severity: Note, What: "/etc/fuse.conf has no user_allow_other", Cost: "mount --allow-other is for root only",
		Fix: "echo user_allow_other | sudo tee -a /etc/fuse.conf",
	}}
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
