package fs_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
)

// An attacker who swaps names as fast as it can, while root works with paths through them.
func init() {
	// A B: exchanges the two again and again
	childCommands["swap"] = func(a []string) error {
		fmt.Println("swapping")
		for ended := inputEnds(); !ended(); {
			if err := unix.Renameat2(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], unix.RENAME_EXCHANGE); err != nil {
				return err
			}
		}
		return nil
	}
	// BASE VICTIM: puts a symbolic link to the victim in the place of each socket's folder, for a moment, again and again
	childCommands["snatch"] = func(a []string) error {
		fmt.Println("snatching")
		for ended := inputEnds(); !ended(); {
			names, err := filepath.Glob(filepath.Join(a[0], "overmind-fs-*"))
			if err != nil {
				return err
			}
			for _, name := range names {
				if aside := name + ".aside"; !strings.HasSuffix(name, ".aside") && unix.Rename(name, aside) == nil {
					if unix.Symlink(a[1], name) == nil {
						_ = unix.Unlink(name)
					}
					_ = unix.Rename(aside, name)
				}
			}
		}
		return nil
	}
}

func inputEnds() func() bool {
	ended := make(chan struct{})
	go func() { hold(); close(ended) }()
	return func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
}

// attackable is a folder of userA, and beside it one of root that userA wants something done to.
func attackable(t *testing.T) (home, victim string) {
	t.Helper()
	needRoot(t)
	above, err := os.MkdirTemp("", "overmind-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(above)) })
	must(t, os.Chmod(above, 0o755))
	home, victim = filepath.Join(above, "home"), filepath.Join(above, "victim")
	for _, dir := range []string{home, victim} {
		must(t, os.Mkdir(dir, 0o755))
	}
	must(t, os.Chown(home, userA, userA))
	return home, victim
}

// swapped is a path that leads to a folder of userA, or by a symbolic link to one of root with a mount on it, in turns.
func swapped(t *testing.T) (path, victim string) {
	t.Helper()
	home, above := attackable(t)
	victim = filepath.Join(above, "mnt")
	must(t, os.Mkdir(victim, 0o755))
	must(t, unix.Mount("victim", victim, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(t, unix.Unmount(victim, unix.MNT_DETACH)) })
	folder, link := filepath.Join(home, "folder"), filepath.Join(home, "link")
	must(t, os.MkdirAll(filepath.Join(folder, "mnt"), 0o755))
	must(t, os.Chown(folder, userA, userA))
	must(t, os.Symlink(above, link))
	attacker := start(t, userA, "swap", folder, link)
	if got := attacker.line(); got != "swapping" {
		t.Fatal(got)
	}
	t.Cleanup(func() {
		if got := attacker.finish(); got != "" {
			t.Error(got)
		}
	})
	return filepath.Join(folder, "mnt"), victim
}

// wantUntouched fails when root did to the victim what it meant for its own.
func wantUntouched(t *testing.T, victim string) {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(victim, &st))
	if st.Type != unix.TMPFS_MAGIC {
		t.Fatalf("the victim's mount is gone or covered: type %x", st.Type)
	}
	names := make([]byte, 1024)
	n, err := unix.Llistxattr(victim, names)
	if err == nil && strings.Contains(string(names[:n]), "overmind") {
		t.Fatalf("the victim has attributes: %q", names[:n])
	}
}

// overmindMounts are those below a folder.
func overmindMounts(t *testing.T, above string) []string {
	t.Helper()
	all, err := overmindfs.MountPoints()
	must(t, err)
	return slices.DeleteFunc(all, func(path string) bool { return !strings.HasPrefix(path, above+"/") })
}

// As long as the attacker likes: a mount is made, marked and unmounted in one folder, or nowhere.
func TestMountPointIsSwapped(t *testing.T) {
	needFUSE(t)
	path, victim := swapped(t)
	above := filepath.Dir(filepath.Dir(victim))
	made := 0
	for range 300 {
		s := store.New(store.Options{OS: store.NewOS()})
		m, err := overmindfs.New(overmindfs.Options{Dir: path, Store: s, Logger: slog.New(slog.DiscardHandler)})
		switch {
		case err == nil:
			made++
			unmounted := make(chan error, 1)
			go func() { _, err := m.Unmount(); unmounted <- err }()
			select {
			case err := <-unmounted:
				must(t, err)
			case <-time.After(30 * time.Second):
				t.Fatal("something else was unmounted")
			}
		case !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT):
			t.Errorf("mount: %v", err)
		}
		s.Close()
		wantUntouched(t, victim)
		if left := overmindMounts(t, above); len(left) > 0 {
			t.Fatalf("still mounted: %v", left)
		}
	}
	if made == 0 || made == 300 {
		t.Errorf("%d of 300 were mounted: nothing was swapped in time", made)
	}
}

// The same for a mount that is unmounted by its path, as by the command and by what follows a daemon that was killed.
func TestUnmountOfASwappedPath(t *testing.T) {
	path, victim := swapped(t)
	refused := 0
	for range 300 {
		for mounted := false; !mounted; { // by the attacker's own folder, whatever its name is now
			for _, name := range []string{"folder", "link"} {
				own := filepath.Join(filepath.Dir(filepath.Dir(path)), name)
				fd, err := unix.Open(own, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err != nil {
					continue
				}
				must(t, unix.Mount("own", fmt.Sprintf("/proc/self/fd/%d/mnt", fd), "tmpfs", 0, "size=64k"))
				must(t, unix.Close(fd))
				mounted = true
				break
			}
		}
		for deadline := time.Now().Add(30 * time.Second); ; {
			err := overmindfs.Detach(path, false)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENOENT) {
				t.Fatal(err)
			}
			refused++
			if time.Now().After(deadline) {
				t.Fatal("never unmounted")
			}
		}
		wantUntouched(t, victim)
	}
	if refused == 0 {
		t.Error("nothing was swapped in time")
	}
}

// A folder for sockets in which somebody else may rename things: what is changed and removed is the daemon's own.
func TestSocketFolderIsSwapped(t *testing.T) {
	base, victim := attackable(t)
	for _, name := range []string{"control", "new"} {
		must(t, os.WriteFile(filepath.Join(victim, name), []byte("kept"), 0o640))
	}
	attacker := start(t, userA, "snatch", base, victim)
	if got := attacker.line(); got != "snatching" {
		t.Fatal(got)
	}
	for range 1000 {
		s, err := fdpass.Listen(fdpass.Options{
			Audience: fdpass.Audience{UID: userA, GID: userA}, Bases: []string{base}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err == nil {
			s.Close()
		}
		names, err := os.ReadDir(victim)
		must(t, err)
		if len(names) != 2 {
			t.Fatalf("the victim has %v", names)
		}
		for _, entry := range names {
			info, err := entry.Info()
			must(t, err)
			if owner := info.Sys().(*syscall.Stat_t).Uid; info.Mode() != 0o640 || owner != 0 {
				t.Fatalf("%s of the victim: mode %v, owner %d", entry.Name(), info.Mode(), owner)
			}
		}
		info, err := os.Stat(victim)
		must(t, err)
		if info.Mode().Perm() != 0o755 {
			t.Fatalf("the victim's mode is %v", info.Mode())
		}
	}
	if got := attacker.finish(); got != "" {
		t.Error(got)
	}
}
