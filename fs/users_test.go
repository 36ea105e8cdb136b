package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

// idOf is the id of a user on a mount of root.
func idOf(uid uint32, name string) string {
	if uid == 0 {
		return name
	}
	return fmt.Sprintf("%s.u%d", name, uid)
}

func sharing(share bool) func(*overmindfs.Options, *store.Options) {
	return func(o *overmindfs.Options, _ *store.Options) { o.AllowOther, o.Share = true, share }
}

// attempts returns what a child of attacks_test.go says: attempt -> errno.
func attempts(t *testing.T, output string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		at := strings.LastIndex(line, " ")
		if at < 0 {
			t.Fatalf("not an attempt: %q", line)
		}
		out[line[:at]] = line[at+1:]
	}
	if len(out) < 3 {
		t.Fatalf("too few attempts: %q", output)
	}
	return out
}

// userFill has userA fill an entry.
func (m *mounted) userFill(t *testing.T, name string) fstest.Fill {
	t.Helper()
	f := fstest.Fill{Root: m.dir, ID: idOf(userA, name), Size: mib}
	if got := start(t, userA, "fill", m.dir, f.ID, fmt.Sprint(mib)).finish(); got != "" {
		t.Fatal(got)
	}
	return f
}

// unchanged reads the arena past whatever the attackers' processes have.
func unchanged(t *testing.T, f fstest.Fill) {
	t.Helper()
	got, err := os.ReadFile(fstest.Arena(f.Entry()))
	must(t, err)
	if !bytes.Equal(got, fstest.Content(f.Size)) {
		t.Error("the bytes of the arena are others")
	}
}

// Nobody evicts, pins, replaces, locks or fills what has another user's id, and reads only what is shared.
func TestAnotherUsersEntries(t *testing.T) {
	needRoot(t)
	for _, share := range []bool{false, true} {
		t.Run(fmt.Sprintf("share=%v", share), func(t *testing.T) {
			m := testMount(t, sharing(share))
			f := m.userFill(t, "a")
			filler := start(t, userA, "stage", m.dir, idOf(userA, "s"), fmt.Sprint(mib))
			if got := filler.line(); got != "staged" {
				t.Fatal(got)
			}
			for what, got := range attempts(t, start(t, userB, "meddle", m.dir, f.ID, idOf(userA, "s")).finish()) {
				readable := share && (strings.HasPrefix(what, "read: ") || what == "read a fill")
				if readable != (got == "ok") {
					t.Errorf("%s: %s", what, got)
				}
				if !readable && got != "EACCES" && got != "EPERM" && got != "EXDEV" {
					t.Errorf("%s: %s", what, got)
				}
			}
			filler.kill()
			eventually(t, "no filler, no staging", func() bool { return len(m.store.StagingIDs()) == 0 })
			unchanged(t, f)
			try := func(args ...string) string { return start(t, userA, "try", args...).finish() }
			for _, verb := range []string{"pin", "rmdir"} {
				if got := try(verb, f.Entry()); got != "ok" {
					t.Errorf("the owner: %s: %s", verb, got)
				}
			}
		})
	}
}

// The plain ids are the mount owner's.
func TestIDsOfTheMountsOwner(t *testing.T) {
	needRoot(t)
	m := testMount(t, sharing(true))
	m.fill(t, "a", mib)
	for _, id := range []string{"a", "to-come", "x.u0", idOf(userA, "x"), "x.u4294967296"} {
		for _, args := range [][]string{{"mkdir", m.path("staging", id)}, {"read", m.path("locks", id)}} {
			if got := start(t, userB, "try", args...).finish(); got != "EPERM" {
				t.Errorf("%v: %s", args, got)
			}
		}
	}
	own := idOf(userB, "a")
	for verb, want := range map[string]string{"read": "ok", "mkdir": "EPERM"} { // a fill needs the lock, and ends with it
		place := map[string]string{"read": "locks", "mkdir": "staging"}[verb]
		if got := start(t, userB, "try", verb, m.path(place, own)).finish(); got != want {
			t.Errorf("one's own: %s: %s", verb, got)
		}
	}
	if got := start(t, userB, "fill", m.dir, own, fmt.Sprint(mib)).finish(); got != "" {
		t.Error(got)
	}
}

// No descriptor or mapping for reading becomes one for writing, neither of another user nor of the owner.
func TestSealedArenas(t *testing.T) {
	needRoot(t)
	for name, off := range map[string]bool{"passthrough": false, "daemon": true} {
		t.Run(name, func(t *testing.T) {
			m := testMount(t, sharing(true), func(o *overmindfs.Options, _ *store.Options) { o.Passthrough = !off })
			if !off {
				m.needPassthrough(t)
			}
			f := m.userFill(t, "a")
			for _, uid := range []uint32{0, userA, userB} {
				refused(t, start(t, uid, "tamper", fstest.Arena(f.Entry())).finish())
				unchanged(t, f)
			}
		})
	}
}

// As before, for memory that the socket hands out.
func TestSealedMemory(t *testing.T) {
	needRoot(t)
	m := testMount(t, sharing(true))
	m.needControl(t)
	f := m.userFill(t, "a")
	path, err := os.Readlink(m.path("control"))
	must(t, err)
	for _, uid := range []uint32{0, userA, userB} {
		inode := fmt.Sprint(inodeOf(t, fstest.Arena(f.Entry())))
		refused(t, start(t, uid, "tamperPassed", path, f.ID, inode).finish())
		unchanged(t, f)
	}
}

func refused(t *testing.T, output string) {
	t.Helper()
	for what, got := range attempts(t, output) {
		// A shared mapping that may not be written is written by /proc/self/mem as a private one, or not at all.
		if got == "ok" && what != "/proc/self/mem" {
			t.Errorf("%s: %s", what, got)
		}
	}
}

// A filler that keeps a way to write is not committed, or has lost it.
func TestWritersAcrossTheCommit(t *testing.T) {
	needRoot(t)
	m := testMount(t, sharing(true))
	kept := attempts(t, start(t, userA, "keepWriter", m.dir, idOf(userA, "a"), fmt.Sprint(mib), "file").finish()+"\nend ok")
	if kept["commit with a handle"] != "ETXTBSY" || kept["commit with a mapping"] != "EBUSY" {
		t.Errorf("%v", kept)
	}
	m.needControl(t)
	f := fstest.Fill{Root: m.dir, ID: idOf(userA, "b"), Size: mib}
	refused(t, start(t, userA, "keepWriter", m.dir, f.ID, fmt.Sprint(mib), "passed").finish())
	unchanged(t, f)
}

// What a user may have is bounded, and costs others nothing.
func TestBoundsOfAUser(t *testing.T) {
	needRoot(t)
	m := testMount(t, sharing(false))
	f := m.userFill(t, "a")
	for command, most := range map[string]int{
		"openLocks": store.MaxLocks, "makeStagings": store.MaxStagings, "makeArenas": store.MaxArenas,
	} {
		attacker := start(t, userB, command, m.dir)
		if got := attacker.line(); got != fmt.Sprint(most, " EDQUOT") {
			t.Errorf("%s: %s", command, got)
		}
		m.userFill(t, "b") // and so others go on
		attacker.kill()
		eventually(t, "all of it goes with its process", func() bool {
			return len(m.store.LockIDs()) == 0 && len(m.store.StagingIDs()) == 0
		})
	}
	for what, got := range attempts(t, start(t, userB, "askForTooMuch", m.dir).finish()) {
		if got == "ok" {
			t.Errorf("10 TB by %s: %s", what, got)
		}
	}
	unchanged(t, f)
}

// One user's silent connections leave room for others.
func TestSocketIsFlooded(t *testing.T) {
	needRoot(t)
	m := testMount(t, sharing(false))
	m.needControl(t)
	f := m.userFill(t, "a")
	path, err := os.Readlink(m.path("control"))
	must(t, err)
	attacker := start(t, userB, "flood", path)
	if got := attacker.line(); got != "flooded" {
		t.Fatal(got)
	}
	inode := fmt.Sprint(inodeOf(t, fstest.Arena(f.Entry())))
	if got := start(t, userA, "passed", path, "false", f.ID, inode).finish(); got != "ok" {
		t.Errorf("another user: %s", got)
	}
	attacker.kill()
}

// A symbolic link that somebody puts into the path of the mount point, after it was looked at, leads nowhere.
func TestMountPointBehindASymlink(t *testing.T) {
	needRoot(t)
	needFUSE(t)
	above := t.TempDir()
	victim := filepath.Join(above, "victim")
	must(t, os.MkdirAll(filepath.Join(victim, "mnt"), 0o755))
	must(t, os.Symlink(victim, filepath.Join(above, "home")))
	must(t, os.Symlink(filepath.Join(victim, "mnt"), filepath.Join(above, "mnt")))
	for _, dir := range []string{filepath.Join(above, "home", "mnt"), filepath.Join(above, "mnt")} {
		s := store.New(store.Options{OS: store.NewOS()})
		m, err := overmindfs.New(overmindfs.Options{Dir: dir, Store: s, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			_, _ = m.Unmount()
		}
		if !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v", dir, err)
		}
		if kind, _ := overmindfs.MountedType(filepath.Join(victim, "mnt")); kind != "" {
			t.Errorf("%s: mounted on the victim", dir)
		}
		s.Close()
	}
}
