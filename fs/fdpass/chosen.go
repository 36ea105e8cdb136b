package fdpass

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// ErrFolder is returned for a folder in which a socket would not be safe, or could not be reached.
var ErrFolder = errors.New("not fit for the socket")

// Permission bits of others.
const (
	othersWrite = 0o022
	othersPass  = 0o001
)

// PrepareFolder makes the folder that somebody has chosen for the socket, or looks at the one that is there, and returns
// its path without symbolic links. It must not lie in the folder that the mount will hide. Nobody but root and this user
// may be able to put something else in its place or into it: removeStale deletes in there, and clients look there for
// the daemon.
func PrepareFolder(path, mount string, a Audience) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, filepath.Base(abs))
	if below, err := filepath.Rel(mount, dir); err == nil && filepath.IsLocal(below) {
		return "", fmt.Errorf("%s: %w: the mount on %s hides it", dir, ErrFolder, mount)
	}
	// Above it first: where somebody else could change the path, not even a folder is made.
	for above := parent; ; above = filepath.Dir(above) {
		if err := trusted(above, true); err != nil {
			return "", err
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	mode := os.FileMode(0o700)
	if a.foreign() {
		mode = 0o711
	}
	if err = os.Mkdir(dir, mode); err == nil {
		err = os.Chmod(dir, mode) // whatever the umask is
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := trusted(dir, false); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if a.foreign() && info.Mode()&othersPass == 0 {
		return "", fmt.Errorf("%s: %w: other users cannot pass it: chmod 711 %s", dir, ErrFolder, dir)
	}
	return dir, nil
}

// trusted says why somebody else could change what a folder holds. In a sticky one nobody can replace what is another's,
// which is enough for a folder above.
func trusted(dir string, sticky bool) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("%s: %w: it is a symbolic link", dir, ErrFolder)
	case !info.IsDir():
		return fmt.Errorf("%s: %w: it is no folder", dir, ErrFolder)
	case !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s: %w: it belongs neither to root nor to this user", dir, ErrFolder)
	case info.Mode()&othersWrite != 0 && (!sticky || info.Mode()&os.ModeSticky == 0):
		return fmt.Errorf("%s: %w: others can write into it: chmod go-w %s", dir, ErrFolder, dir)
	}
	return nil
}
