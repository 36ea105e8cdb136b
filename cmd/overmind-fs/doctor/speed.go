package doctor

import (
	"fmt"
	"strings"

	overmindfs "overmind-fs/fs"
)

// switchedOff is the reason when an option says so.
const switchedOff = "switched off"

// access is "" where there is no telling, and where programs load without the cache.
func (m Mount) access() string {
	switch {
	case m.Plain && (m.Health == overmindfs.NotMounted || m.Health == overmindfs.OtherMount):
		return "directory"
	case !m.Looked:
		return ""
	case m.Status.Passthrough.Active:
		return "passthrough"
	case m.Status.FDPassing.Active:
		return "fd"
	default:
		return "read"
	}
}

func passthrough(machine Machine, m Mount) []Finding {
	if m.Status.Passthrough.Active {
		return nil
	}
	f := Finding{
		Severity: Warning, What: "no passthrough: " + m.Status.Passthrough.Reason,
		Cost: "programs get arenas over the control socket; other readers of the files go through the daemon, with a second copy in the page cache",
		Fix:  "boot Linux 6.9 or newer, with CONFIG_FUSE_PASSTHROUGH",
	}
	if !m.Status.FDPassing.Active {
		f.Severity, f.Cost = Error, "and no fd passing: each program has a copy of the weights of its own"
	}
	switch reason := m.Status.Passthrough.Reason; {
	case strings.Contains(reason, "CAP_SYS_ADMIN"):
		f.Fix = fmt.Sprintf("overmind-fs umount %s; sudo overmind-fs mount --background --user $USER %s", m.Dir, m.Dir)
	case strings.Contains(reason, switchedOff):
		f.Fix = remount(machine, m, "")
	}
	return []Finding{f}
}

func fdPassing(machine Machine, m Mount) []Finding {
	if m.Status.FDPassing.Active {
		return nil
	}
	f := Finding{
		Severity: Warning, What: "no fd passing: " + m.Status.FDPassing.Reason,
		Cost: "programs that cannot use passthrough, as in some sandboxes, copy the weights", Fix: remount(machine, m, ""),
	}
	if !strings.Contains(m.Status.FDPassing.Reason, switchedOff) {
		f.Fix = "make /run (for root) or $XDG_RUNTIME_DIR writable for the daemon; " + f.Fix
	}
	return []Finding{f}
}

func hugePages(machine Machine, m Mount) []Finding {
	const cost = "512 times as many page faults when a program first touches the weights, and more address lookups later"
	const setting = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	h := m.Status.HugePages
	switch {
	case !h.Active && strings.Contains(machine.read(setting), "[deny]"):
		return []Finding{{
			Severity: Warning, What: "no huge pages: they are denied for shared memory (" + h.Reason + ")", Cost: cost,
			Fix: fmt.Sprintf("echo never | sudo tee /%s; %s", setting, remount(machine, m, "")),
		}}
	case !h.Active:
		return []Finding{{
			Severity: Warning, What: "no huge pages: " + h.Reason, Cost: cost,
			Fix: "boot Linux 6.1 or newer, with CONFIG_TRANSPARENT_HUGEPAGE",
		}}
	case h.HugeArenas < m.HugeFit:
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("%d arenas have small pages: memory was in pieces when they were filled", m.HugeFit-h.HugeArenas),
			Cost: cost, Fix: "echo 1 | sudo tee /proc/sys/vm/compact_memory; then evict and load again what matters",
		}}
	}
	return nil
}
