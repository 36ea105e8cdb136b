package fs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
)

// What nobody looks at takes no memory, neither in the kernel nor here, and comes back as it was.
func TestNodesAreForgotten(t *testing.T) {
	m := testMount(t)
	f := m.fill(t, "a", mib)
	lock := openFD(t, m.path("locks", "a"), unix.O_RDWR|unix.O_CREAT)
	must(t, unix.Close(lock))
	inode := func() uint64 {
		var st unix.Stat_t
		must(t, unix.Stat(fstest.Arena(f.Entry()), &st))
		return st.Ino
	}
	before := inode()
	must(t, filepath.WalkDir(f.Entry(), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			_, err = os.Stat(path)
		}
		return err
	}))
	if n := m.Nodes(); n < 8 {
		t.Fatalf("%d nodes", n)
	}
	if !m.PruneAfter(50 * time.Millisecond) {
		t.Skip("this kernel cannot be asked to forget (Linux 6.18)")
	}
	eventually(t, "all is forgotten", func() bool { return m.Nodes() == 0 })
	if got := inode(); got != before {
		t.Errorf("inode %d before and %d after", before, got)
	}

	// What is open stays until it is closed.
	c := start(t, 0, "map", fstest.Arena(f.Entry()))
	sum := c.line()
	eventually(t, "all but what is open is forgotten", func() bool { return m.Nodes() <= 3 })
	if n := m.Nodes(); n == 0 {
		t.Error("an open file was forgotten")
	}
	if again := c.finish(); again != sum {
		t.Errorf("the mapping changed: %s, %s", sum, again)
	}
	eventually(t, "the rest is forgotten", func() bool { return m.Nodes() == 0 })
}

// A burst of fills leaves the nodes of thousands, all of them looked at lately.
func TestNodesOfManyAreForgottenSooner(t *testing.T) {
	m := testMount(t)
	if !m.PruneAfter(time.Minute) {
		t.Skip("this kernel cannot be asked to forget (Linux 6.18)")
	}
	const many = 600
	for n := range many {
		lock := openFD(t, m.path("locks", fmt.Sprint("many-", n)), unix.O_RDWR|unix.O_CREAT)
		must(t, unix.Close(lock))
	}
	if n := m.Nodes(); n < many {
		t.Fatalf("%d nodes", n)
	}
	eventually(t, "most are forgotten, before the minute is over", func() bool { return m.Nodes() <= 512 })
}
