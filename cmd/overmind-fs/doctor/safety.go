package doctor

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize/english"
)

// Permission bits of others.
const (
	othersWrite = 0o002
	groupWrite  = 0o020
)

func socket(machine Machine, m Mount) []Finding {
	if m.Socket == "" {
		return nil
	}
	folder := filepath.Dir(m.Socket)
	var found []Finding
	if m.FolderMode&(othersWrite|groupWrite) != 0 {
		found = append(found, Finding{
			Severity: Error, What: fmt.Sprintf("others can write into %s, the folder of the control socket", folder),
			Cost: "they can put a socket of their own there; programs refuse it, and are slower", Fix: "chmod 0711 " + folder,
		})
	}
	switch {
	case m.SocketMode == 0:
		found = append(found, Finding{
			Severity: Error, What: fmt.Sprintf("the control socket %s is gone", m.Socket),
			Cost: "programs that cannot use passthrough copy the weights", Fix: remount(machine, m, ""),
		})
	case m.SocketMode&othersWrite != 0 && m.Shared:
		found = append(found, Finding{
			Severity: Warning, What: "mounted with --allow-other: the control socket is world-writable and every user may use the cache",
			Cost: "each may fill the budget, and with --share read the weights of the others",
			Fix:  fmt.Sprintf("overmind-fs umount %s; overmind-fs mount --background --user NAME %s", m.Dir, m.Dir),
		})
	case m.SocketMode&othersWrite != 0:
		found = append(found, Finding{
			Severity: Error, What: fmt.Sprintf("the control socket %s is world-writable", m.Socket),
			Cost: "every user can take up its connections", Fix: "chmod 0600 " + m.Socket,
		})
	}
	return found
}

func versions(machine Machine, m Mount) []Finding {
	if m.Status.Version == machine.Version {
		return nil
	}
	return []Finding{{
		Severity: Warning, What: fmt.Sprintf("the daemon is version %s, this command %s", m.Status.Version, machine.Version),
		Cost: "what the newer one can do, the other does not know", Fix: remount(machine, m, ""),
	}}
}

func entries(_ Machine, m Mount) []Finding {
	if len(m.Unreadable) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, What: english.Plural(len(m.Unreadable), "entry", "entries") + " cannot be read by this version: " + strings.Join(m.Unreadable, "; "),
		Cost: "they take memory, and programs of this version load without them",
		Fix:  fmt.Sprintf("overmind-fs evict --root %s ID", m.Dir),
	}}
}
