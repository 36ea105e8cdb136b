package fs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
	"overmind-fs/schema/schematest"
)

// Small files of several entries share a memfd, and each shows its own bytes, to who reads and to who maps.
func TestPackedFiles(t *testing.T) {
	before := memfds(t)
	m := testMount(t)
	const last = 9
	var all []fstest.Fill
	for n := range last + 1 {
		f := fstest.Small(m.dir, fmt.Sprint("e", n))
		f.Structure = int64(1 + n*7000) // less than a page, and all of a slot nearly
		must(t, f.Run())
		all = append(all, f)
	}
	if n := memfds(t) - before; n != len(all)+1 {
		t.Errorf("%d memfds", n)
	}
	for _, f := range all {
		must(t, f.Check())
	}
	f := all[last]
	for name, want := range map[string][]byte{
		"structure.pkl": fstest.Content(f.Structure), "manifest": schematest.Encode(f.Manifest()),
	} {
		c := start(t, 0, "map", filepath.Join(f.Entry(), name))
		if got := c.line(); got != fmt.Sprintf("%x", sha256.Sum256(want)) {
			t.Errorf("%s has other bytes when mapped", name)
		}
		c.finish()
	}

	// Nothing but the file is there to be read, and no part of it to be written.
	file, err := os.Open(filepath.Join(f.Entry(), "structure.pkl"))
	must(t, err)
	defer func() { _ = file.Close() }()
	buf := make([]byte, 100)
	if n, err := file.ReadAt(buf, f.Structure-10); n != 10 || err != io.EOF {
		t.Errorf("%d bytes at the end, %v", n, err)
	}
	_, err = os.OpenFile(file.Name(), os.O_RDWR, 0)
	wantErrno(t, err, syscall.EROFS)
	wantErrno(t, os.Truncate(file.Name(), 1), syscall.EROFS)

	// What is open is read on after its entry has left and others have come.
	must(t, unix.Rmdir(f.Entry()))
	for _, f := range all[:last] {
		must(t, unix.Rmdir(f.Entry()))
	}
	again := fstest.Small(m.dir, "again")
	must(t, again.Run())
	must(t, again.Check())
	must(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)) // the daemon is asked, not the page cache
	got, err := io.ReadAll(file)
	if want := fstest.Content(f.Structure); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	must(t, file.Close())
	must(t, unix.Rmdir(again.Entry()))
	eventually(t, "all memory is let go", func() bool { return memfds(t) == before })
}

// memfds counts the memfds of entries that this process has open.
func memfds(t *testing.T) int {
	t.Helper()
	n, err := fstest.Memfds(os.Getpid())
	must(t, err)
	return n
}
