package fs_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/fs/store"
)

func TestFlockBetweenProcesses(t *testing.T) {
	m := testMount(t)
	path := m.path("locks", "any-id_1.0")
	a := start(t, 0, "trylock", path)
	if got := a.line(); got != "yes" {
		t.Fatal(got)
	}
	if got := start(t, 0, "trylock", path).finish(); got != "no" {
		t.Fatal("two processes have the lock")
	}
	// Also when the name is looked up again, as a listing makes the kernel do: it has to find the same inode.
	names, err := os.ReadDir(m.path("locks"))
	must(t, err)
	if len(names) != 1 || names[0].Name() != "any-id_1.0" {
		t.Errorf("open locks: %v", names)
	}
	if got := start(t, 0, "trylock", path).finish(); got != "no" {
		t.Fatal("two processes have the lock after its name was looked up again")
	}
	if got := start(t, 0, "trylock", m.path("locks", "other")).finish(); got != "yes" {
		t.Fatal("another id has the same lock")
	}
	a.kill()
	if got := start(t, 0, "trylock", path).finish(); got != "yes" {
		t.Fatal("the lock of a killed process is not free")
	}
	fd := openFD(t, path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC)
	must(t, unix.Close(fd))
	wantErrno(t, os.Remove(path), syscall.EPERM)
}

func TestKilledFillerLeavesNothing(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		c := start(t, 0, "stage", m.dir, "a", fmt.Sprint(8*mib))
		if got := c.line(); got != "staged" {
			t.Fatal(got)
		}
		if s := m.store.Stats(); s.StagingBytes < uint64(8*mib) {
			t.Fatalf("stats %+v", s)
		}
		c.kill()
		eventually(t, "staging dropped", func() bool {
			s := m.store.Stats()
			return s.Stagings == 0 && s.StagingBytes == 0 && s.DrainingBytes == 0
		})
		_, err := os.Stat(m.path("staging", "a"))
		wantErrno(t, err, syscall.ENOENT)
		m.fill(t, "a", mib)
	})
}

// Another process that waits for the lock does not keep the staging of a dead filler, and does not lose its own.
func TestStagingWithoutLockStays(t *testing.T) {
	m := testMount(t)
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
	must(t, f.Stage())
	if got := start(t, 0, "trylock", m.path("locks", "a")).finish(); got != "yes" {
		t.Fatal(got)
	}
	must(t, f.Commit())
}

const (
	userA = 12345
	userB = 12346
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as other users")
	}
}

// As root for one user: the fast paths stay, and nobody else gets in.
func TestServedUser(t *testing.T) {
	needRoot(t)
	m := testMount(t, func(o *overmindfs.Options, _ *store.Options) { o.UID, o.GID, o.Served = userA, userA, true })
	if got := start(t, userA, "fill", m.dir, "a", fmt.Sprint(mib)).finish(); got != "" {
		t.Fatal(got)
	}
	f := fstest.Fill{Root: m.dir, ID: "a", Size: mib}
	try := func(uid uint32, args ...string) string { return start(t, uid, "try", args...).finish() }
	if got := try(userA, "read", fstest.Arena(f.Entry())); got != "ok" {
		t.Errorf("the user reads: %s", got)
	}
	if got := try(userB, "read", fstest.Arena(f.Entry())); got != "EACCES" {
		t.Errorf("another user reads: %s", got)
	}
	if got := try(userB, "mkdir", m.path("staging", "b")); got != "EACCES" {
		t.Errorf("another user fills: %s", got)
	}
	if m.Status().Passthrough.Active && m.metric(t, "arena_reads_total") != "0" {
		t.Error("the fast path is gone")
	}
	if got := try(userA, "rmdir", f.Entry()); got != "ok" {
		t.Errorf("the user evicts: %s", got)
	}
}
