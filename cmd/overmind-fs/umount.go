package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

const (
	umountRetries = 5
	umountWait    = 5 * time.Second
	pollInterval  = 20 * time.Millisecond
)

func cmdUmount() *cli.Command {
	return &cli.Command{
		Name:      "umount",
		Aliases:   []string{"unmount"},
		Usage:     "unmount a cache",
		ArgsUsage: "[DIR]",
		Flags:     []cli.Flag{rootFlag()},
		Action: func(c *cli.Context) error {
			dir := c.String("root")
			if c.Args().Present() {
				dir = c.Args().First()
			}
			if c.NArg() > 1 || dir == "" {
				return usageError{fmt.Sprintf("umount needs one folder, got %d; without one it takes --root or $%s", c.NArg(), rootEnv)}
			}
			return umount(c.Context, dir)
		},
	}
}

// umount unmounts and waits for the daemon, unless files are open: then the mount leaves the tree now, and the daemon
// serves them until the last one is closed.
func umount(ctx context.Context, path string) error {
	dir, err := mountPointOf(path)
	if err != nil {
		return err
	}
	if kind, err := overmindfs.MountedType(dir); err != nil {
		return err
	} else if kind != overmindfs.FSType {
		return fmt.Errorf("%s: %w", dir, errNoMount)
	}
	pid := 0
	health, _ := overmindfs.ProbeMount(dir)
	if health == overmindfs.AliveMount {
		if s, err := readStatus(dir); err == nil {
			pid = s.LocalPID()
		}
	}
	if health == overmindfs.SilentMount { // in use by our own question, if by nobody else's
		if err := overmindfs.Detach(dir, true); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s is detached, but its daemon does not answer and may still be there: pgrep -af 'overmind-fs mount'\n", dir)
		return nil
	}
	busy := true
	for range umountRetries {
		err := overmindfs.Detach(dir, false)
		if err == nil {
			busy = false
			break
		}
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(pollInterval)
	}
	if busy {
		if err := overmindfs.Detach(dir, true); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s is in use: detached, its daemon ends when the last file is closed\n", dir)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, umountWait)
	defer cancel()
	for pid != 0 && running(pid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is unmounted, but its daemon (pid %d) has not ended yet", dir, pid)
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// running says whether a process is at work. One that has ended and that its parent has not noticed yet is not: it holds
// nothing any more.
func running(pid int) bool {
	if err := unix.Kill(pid, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	// 123 (name, which may hold anything) S ...
	at := strings.LastIndex(string(text), ") ")
	if err != nil || at < 0 || at+2 >= len(text) {
		return true
	}
	state := text[at+2]
	return state != 'Z' && state != 'X'
}
