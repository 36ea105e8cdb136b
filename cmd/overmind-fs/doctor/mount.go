package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// Mount is what is looked at of one cache.
type Mount struct {
	Dir    string
	Wanted bool // it is what --root or OVERMIND_ROOT says
	Health overmindfs.Health
	Exists bool // the folder is there
	Empty  bool // and nothing is in it
	Plain  bool // it is a cache without a daemon
	Closed bool // this user may not look into it

	// Of one that answers, and that was looked at in full:
	Looked     bool
	Status     overmindfs.Status
	Shared     bool        // it is for all users
	Socket     string      // path, "" for none
	SocketMode fs.FileMode // of the socket and of the folder it is in
	FolderMode fs.FileMode
	HugeFit    int      // arenas that are large enough for a huge page
	LargestFit uint64   // bytes of the largest arena
	Unreadable []string // entries whose manifest this version cannot read, and why
}

func (m Mount) alive() bool { return m.Health == overmindfs.AliveMount }

// Probe only finds out whether the daemon of a mount answers.
func Probe(dir string) (Mount, error) {
	health, err := overmindfs.ProbeMount(dir)
	return Mount{Dir: dir, Health: health, Closed: errors.Is(err, fs.ErrPermission)}, nil
}

// Look gathers the facts about a cache.
func Look(dir string) (Mount, error) {
	m := Mount{Dir: dir}
	var err error
	if m.Health, err = overmindfs.ProbeMount(dir); err != nil && m.Health == overmindfs.NotMounted {
		return m, err
	}
	if m.Health == overmindfs.DeadMount || m.Health == overmindfs.SilentMount {
		return m, nil
	}
	names, err := os.ReadDir(dir)
	m.Exists, m.Empty = err == nil, len(names) == 0
	m.Plain = slices.ContainsFunc(names, func(n fs.DirEntry) bool { return n.Name() == "CACHEDIR.TAG" })
	m.Closed = errors.Is(err, fs.ErrPermission)
	if errors.Is(err, fs.ErrNotExist) || m.Closed {
		return m, nil
	}
	if err != nil || !m.alive() {
		return m, err
	}
	if m.Status, err = overmindfs.ReadStatus(dir); err != nil {
		return m, err
	}
	if info, err := os.Stat(filepath.Join(dir, "pipelines")); err == nil {
		m.Shared = info.Mode()&fs.ModeSticky != 0
	}
	if path, err := overmindfs.ControlSocket(dir); err == nil {
		m.Socket = path
		if info, err := os.Stat(path); err == nil {
			m.SocketMode = info.Mode().Perm()
		}
		if info, err := os.Stat(filepath.Dir(path)); err == nil {
			m.FolderMode = info.Mode().Perm()
		}
	}
	m.Looked = true
	return m, m.lookAtEntries()
}

func (m *Mount) lookAtEntries() error {
	folder := filepath.Join(m.Dir, "pipelines")
	names, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, n := range names {
		buf, err := os.ReadFile(filepath.Join(folder, n.Name(), store.ManifestName))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went in the meantime
		}
		if err != nil {
			return err
		}
		manifest, err := schema.Decode(buf)
		if err == nil && manifest.Format != schema.Format {
			err = fmt.Errorf("format %d, this version reads %d", manifest.Format, schema.Format)
		}
		if err != nil {
			m.Unreadable = append(m.Unreadable, fmt.Sprintf("%s: %v", n.Name(), err))
			continue
		}
		for _, a := range manifest.Arenas {
			m.LargestFit = max(m.LargestFit, a.Nbytes)
			if a.Nbytes >= hugePage {
				m.HugeFit++
			}
		}
	}
	return nil
}

func health(_ Machine, m Mount) []Finding {
	switch {
	case m.Closed && !m.Wanted:
		return nil // somebody else's
	case m.Closed:
		return []Finding{{
			Severity: Error, What: "this user may not use it", Cost: "programs of this user load without the cache",
			Fix: "mount it as this user, or as root with --user $USER",
		}}
	case m.Health == overmindfs.DeadMount:
		return []Finding{{
			Severity: Error, What: "the daemon of this mount is dead", Cost: "programs load without the cache",
			Fix: fmt.Sprintf("overmind-fs mount --background %s, or overmind-fs umount %s", m.Dir, m.Dir),
		}}
	case m.Health == overmindfs.SilentMount:
		return []Finding{{
			Severity: Error, What: "the daemon of this mount does not answer",
			Cost: "each program waits some seconds for it, then loads without the cache",
			Fix: fmt.Sprintf("pgrep -af 'overmind-fs mount'; kill -CONT its pid if it was stopped, else kill -9, then overmind-fs mount --background %s",
				m.Dir),
		}}
	case m.Health == overmindfs.OtherMount:
		return []Finding{{
			Severity: Warning, What: "another file system is mounted there", Cost: "programs use it without a daemon, if it is empty",
			Fix: fmt.Sprintf("mkdir %s/overmind, mount there, and set OVERMIND_ROOT to it", m.Dir),
		}}
	case m.Health != overmindfs.NotMounted:
		return nil
	case !m.Wanted:
		return nil // it was unmounted meanwhile
	case !m.Exists:
		return []Finding{{
			Severity: Error, What: "there is no such folder", Cost: "programs load without the cache",
			Fix: fmt.Sprintf("mkdir -p %s && overmind-fs mount --background %s", m.Dir, m.Dir),
		}}
	case m.Empty:
		return []Finding{{
			Severity: Warning, What: "nothing is mounted on this empty folder",
			Cost: "programs load without the cache, or make it one without a daemon if it was never a mount point",
			Fix:  "overmind-fs mount --background " + m.Dir,
		}}
	case m.Plain:
		return []Finding{{
			Severity: Note, What: "this is a plain folder, not a mount", Cost: plainCost,
			Fix: "empty it, or choose another one, then overmind-fs mount --background DIR",
		}}
	default:
		return []Finding{{
			Severity: Error, What: "this folder is neither a mount nor a cache", Cost: "programs load without the cache",
			Fix: "choose another one, then overmind-fs mount --background DIR",
		}}
	}
}

const hugePage = 2 << 20

const plainCost = "programs use it as it is, without budget, seals, pins and huge pages; \"overmind gc\" removes what is old"

// remount is the command that starts the daemon anew with another option.
func remount(machine Machine, m Mount, option string) string {
	option = strings.TrimSpace("--background "+option) + " " + m.Dir
	if machine.CanReplace {
		return "overmind-fs mount --replace " + option + ", with its other options"
	}
	return fmt.Sprintf("overmind-fs umount %s; overmind-fs mount %s, with its other options", m.Dir, option)
}
