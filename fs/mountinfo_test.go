package fs_test

import (
	"slices"
	"testing"

	overmindfs "overmind-fs/fs"
)

func TestMountPointsAndStatus(t *testing.T) {
	m := testMount(t)
	m.fill(t, "a", 4096)
	at := func() bool {
		t.Helper()
		dirs, err := overmindfs.MountPoints()
		must(t, err)
		return slices.Contains(dirs, m.dir)
	}
	if !at() {
		t.Error("it does not show")
	}
	s, err := overmindfs.ReadStatus(m.dir)
	must(t, err)
	if s.Mount != m.dir || s.Entries != 1 {
		t.Errorf("%+v", s)
	}
	_, err = m.Unmount()
	must(t, err)
	if at() {
		t.Error("it shows after the unmount")
	}
	if _, err := overmindfs.ReadStatus(m.dir); err == nil {
		t.Error("an empty folder has a status")
	}
}
