package fdpass

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChosenFolderIsMade(t *testing.T) {
	everyone := Audience{Everyone: true, UID: uint32(os.Geteuid())}
	for name, c := range map[string]struct {
		audience Audience
		mode     os.FileMode
	}{"own": {own(), 0o700}, "everyone": {everyone, 0o711}} {
		t.Run(name, func(t *testing.T) {
			base := shortDir(t)
			must(t, os.Symlink(base, base+"-link"))
			defer func() { must(t, os.Remove(base+"-link")) }()
			for range 2 { // the second time it is there
				dir, err := PrepareFolder(base+"-link/control", base+"/mnt", c.audience)
				must(t, err)
				info, err := os.Lstat(dir)
				must(t, err)
				if dir != base+"/control" || info.Mode().Perm() != c.mode || !ours(info) {
					t.Errorf("%s: %v", dir, info.Mode())
				}
			}
		})
	}
}

func TestUnsafeFoldersAreRefused(t *testing.T) {
	foreign := Audience{Everyone: true, UID: uint32(os.Geteuid())}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, base string)
		path    string
		a       Audience
		want    string
	}{
		"a symbolic link": {func(t *testing.T, base string) {
			must(t, os.Mkdir(base+"/real", 0o700))
			must(t, os.Symlink(base+"/real", base+"/c"))
		}, "c", own(), "symbolic link"},
		"a dangling link": {func(t *testing.T, base string) {
			must(t, os.Symlink(base+"/nowhere", base+"/c"))
		}, "c", own(), "symbolic link"},
		"a file": {func(t *testing.T, base string) {
			must(t, os.WriteFile(base+"/c", nil, 0o600))
		}, "c", own(), "no folder"},
		"open to all": {func(t *testing.T, base string) {
			must(t, os.Mkdir(base+"/c", 0o700))
			must(t, os.Chmod(base+"/c", 0o1777))
		}, "c", own(), "others can write into it: chmod go-w"},
		"open to a group": {func(t *testing.T, base string) {
			must(t, os.Mkdir(base+"/c", 0o700))
			must(t, os.Chmod(base+"/c", 0o770))
		}, "c", own(), "others can write into it"},
		"below one that is open": {func(t *testing.T, base string) {
			must(t, os.MkdirAll(base+"/open/d", 0o700))
			must(t, os.Chmod(base+"/open", 0o777))
		}, "open/d/c", own(), "others can write into it"},
		"closed to those it is for": {func(t *testing.T, base string) {
			must(t, os.Mkdir(base+"/c", 0o700))
		}, "c", foreign, "chmod 711"},
		"the mount point": {func(t *testing.T, base string) { must(t, os.Mkdir(base+"/mnt", 0o700)) }, "mnt", own(), "hides it"},
		"in the mount point": {func(t *testing.T, base string) {
			must(t, os.Mkdir(base+"/mnt", 0o700))
			must(t, os.Symlink(base+"/mnt", base+"/other"))
		}, "other/c", own(), "hides it"},
		"without a parent": {func(*testing.T, string) {}, "a/c", own(), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			base := shortDir(t)
			c.prepare(t, base)
			before := tree(t, base)
			_, err := PrepareFolder(filepath.Join(base, c.path), base+"/mnt", c.a)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), base) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if after := tree(t, base); after != before {
				t.Errorf("it changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	base := shortDir(t)
	must(t, os.Mkdir(base+"/theirs", 0o755))
	must(t, os.Chown(base+"/theirs", 65534, 65534))
	for _, path := range []string{"theirs", "theirs/c"} {
		if _, err := PrepareFolder(filepath.Join(base, path), base+"/mnt", own()); !errors.Is(err, ErrFolder) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// tree lists a folder with modes.
func tree(t *testing.T, base string) string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		lines = append(lines, path+" "+info.Mode().String())
		return nil
	}))
	return strings.Join(lines, "\n")
}
