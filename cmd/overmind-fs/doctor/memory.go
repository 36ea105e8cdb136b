package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"overmind-fs/fs/store"
)

// budget looks at what the limits of the cache do to fills.
func budget(machine Machine, m Mount) []Finding {
	var found []Finding
	b, limit := m.Status.Bytes, m.Status.Limits.MaxBytes
	if m.Status.Refused > 0 {
		found = append(found, Finding{
			Severity: Warning, What: english.Plural(int(m.Status.Refused), "fill", "") + " did not fit since the start",
			Cost: "each was a load without the cache",
			Fix: fmt.Sprintf("overmind-fs evict --older-than 7d, overmind-fs unpin ID, or a larger budget: %s",
				remount(machine, m, "--max-bytes SIZE")),
		})
	}
	if limit > 0 && b.Pinned > limit/5*4 {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("%s of %s are pinned", humanize.IBytes(b.Pinned), humanize.IBytes(limit)),
			Cost: "fills find little that may be evicted", Fix: "overmind-fs unpin ID",
		})
	}
	if limit > 0 && b.Draining > limit/10 {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("%s belong to entries that were evicted and that programs still hold", humanize.IBytes(b.Draining)),
			Cost: "they count in the budget until those programs end",
			Fix:  "end those programs; fuser -vm " + m.Dir + " lists all that use the mount",
		})
	}
	return found
}

// memory compares the budget with what the daemon can have.
func memory(machine Machine, m Mount) []Finding {
	total, room, err := store.MemoryOf(machine.Root, m.Status.PID)
	if err != nil {
		return []Finding{{
			Severity: Note, What: fmt.Sprintf("free memory is unknown: %v", err),
			Cost: "whether the budget fits is unknown", Fix: "mount /proc",
		}}
	}
	b, limit := m.Status.Bytes, m.Status.Limits.MaxBytes
	used := b.Cached + b.Staging + b.Draining
	smaller := remount(machine, m, "--max-bytes 50%")
	switch rest := limit - min(limit, used); {
	case limit > total:
		return []Finding{{
			Severity: Error, What: fmt.Sprintf("the budget is %s, the memory of the machine or of the daemon's cgroup %s",
				humanize.IBytes(limit), humanize.IBytes(total)),
			Cost: "the budget limits nothing; fills are refused, and programs beside the cache may be killed", Fix: smaller,
		}}
	case rest > room:
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("the budget has %s left, the memory only %s", humanize.IBytes(rest), humanize.IBytes(room)),
			Cost: "entries are evicted before the budget is used up, and what does not fit then is loaded without the cache",
			Fix:  "end what else takes memory, or " + smaller,
		}}
	}
	return nil
}

func pressure(machine Machine, m Mount) []Finding {
	p := m.Status.Pressure
	if p.Active || p.Reason == "" { // an older daemon does not say
		return nil
	}
	f := Finding{
		Severity: Warning, What: "memory pressure is not watched: " + p.Reason,
		Cost: "idle entries stay while other programs wait for memory", Fix: "boot with psi=1, with CONFIG_PSI",
	}
	if strings.Contains(p.Reason, switchedOff) {
		f.Fix = remount(machine, m, "--pressure 10%")
	}
	return []Finding{f}
}

// enoughFiles is for some thousand entries and programs; each arena, and each larger structure.pkl, is a descriptor.
const enoughFiles = 4096

func daemonLimits(machine Machine, m Mount) []Finding {
	var found []Finding
	limits := machine.limits(strconv.Itoa(m.Status.PID))
	if files := limits["Max open files"]; files.soft != 0 && files.soft < enoughFiles {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("the daemon may have %d files open", files.soft),
			Cost: "each arena, and each larger structure.pkl, is one: when there are many, idle entries go (max_files), and then fills are refused",
			Fix:  "ulimit -n 65536 (LimitNOFILE=65536 in the unit), then " + remount(machine, m, ""),
		})
	}
	if as, ok := limits["Max address space"]; ok && as.soft < m.Status.Limits.MaxBytes {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("the daemon may have %s of address space", humanize.IBytes(as.soft)),
			Cost: "larger arenas get small pages", Fix: "ulimit -v unlimited (LimitAS=infinity in the unit), then " + remount(machine, m, ""),
		})
	}
	return found
}
