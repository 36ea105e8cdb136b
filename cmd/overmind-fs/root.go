package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

const rootEnv = "OVERMIND_ROOT"

// rootFlag says which cache the client commands work on.
func rootFlag() cli.Flag {
	return &cli.StringFlag{Name: "root", Aliases: []string{"r"}, EnvVars: []string{rootEnv}, Usage: "the cache: a mount or a folder, `DIR`"}
}

// cacheRoot returns the folder given by --root or $OVERMIND_ROOT, of a command without other arguments.
func cacheRootOnly(c *cli.Context) (string, error) {
	if c.Args().Present() {
		return "", usageError{fmt.Sprintf("%s takes no arguments, got %q; the cache is given as --root %s",
			c.Command.Name, c.Args().First(), c.Args().First())}
	}
	return cacheRoot(c)
}

// cacheRoot returns the folder given by --root or $OVERMIND_ROOT, if there is a cache that answers.
func cacheRoot(c *cli.Context) (string, error) {
	root := c.String("root")
	if root == "" {
		return "", usageError{"which cache? give --root DIR or set " + rootEnv}
	}
	return root, checkRoot(root)
}

// checkRoot says why a folder is not a cache that can be used. A daemon that hangs cannot make it wait for long.
func checkRoot(root string) error {
	dir, err := mountPointOf(root)
	if err == nil {
		switch health, _ := overmindfs.ProbeMount(dir); health {
		case overmindfs.DeadMount:
			return fmt.Errorf("%s: %w: \"overmind-fs mount %s\" starts a new one, \"overmind-fs umount %s\" removes the mount",
				dir, errDaemonDead, dir, dir)
		case overmindfs.SilentMount:
			return fmt.Errorf("%s: %w: see what it does, end it, then \"overmind-fs umount %s\"", dir, errDaemonSilent, dir)
		}
	}
	_, err = os.Stat(pipelinesOf(root))
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: %w", root, err)
	}
	if _, err := os.Stat(root); err != nil {
		return fmt.Errorf("%s: %w: there is no such folder", root, errNoMount)
	}
	return fmt.Errorf("%s: %w, nor a folder with a cache in it: \"overmind-fs mount %s\" makes it one", root, errNoMount, root)
}

// checkRemovable says why nothing may be removed from a folder: what is called pipelines may be anything, the sources of
// a program for one, unless a mount or the tag of a cache says what it is.
func checkRemovable(root string) error {
	if dir, err := mountPointOf(root); err == nil {
		if health, _ := overmindfs.ProbeMount(dir); health == overmindfs.AliveMount {
			return nil
		}
	}
	fd, err := unix.Open(filepath.Join(root, "CACHEDIR.TAG"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		tag := os.NewFile(uintptr(fd), "CACHEDIR.TAG")
		text := make([]byte, 4096)
		n, _ := tag.Read(text)
		_ = tag.Close()
		info, err := os.Lstat(pipelinesOf(root))
		if strings.Contains(string(text[:n]), "\novermind-format: ") && err == nil && info.IsDir() {
			return nil
		}
	}
	return fmt.Errorf("%s: %w, nor a cache in a folder: it has no CACHEDIR.TAG of overmind-fs, or its pipelines are a link",
		root, errNoMount)
}

// mountPointOf returns the path as mountinfo shows it, following symbolic links without asking a daemon.
func mountPointOf(path string) (string, error) {
	const maxLinks = 40 // as the kernel
	for range maxLinks {
		dir, err := overmindfs.MountPoint(path)
		if err != nil {
			return "", err
		}
		target, err := os.Readlink(dir) // the kernel answers this for the root of a mount by itself
		if err != nil {
			return dir, nil
		}
		path = target
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(dir), path)
		}
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}

// readStatus reads status.json of a mount.
func readStatus(root string) (overmindfs.Status, error) {
	s, err := overmindfs.ReadStatus(root)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s: %w (a plain folder has no status)", root, errNoMount)
	}
	return s, err
}
