package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

func cmdPin() *cli.Command { return pinCommand("pin", "never evict entries to make room", "1") }

func cmdUnpin() *cli.Command { return pinCommand("unpin", "undo pin", "0") }

func pinCommand(name, usage, value string) *cli.Command {
	return &cli.Command{
		Name:         name,
		Usage:        usage,
		ArgsUsage:    "ID…",
		Flags:        []cli.Flag{rootFlag()},
		BashComplete: completeIDs,
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return usageError{name + " needs ids"}
			}
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			return eachEntry(root, c.Args().Slice(), func(path string) error {
				// Some plain folders would store any attribute.
				_, err := attribute(path, overmindfs.AttrPinned)
				switch {
				case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOENT):
					return fmt.Errorf("%s %w", name, gone(filepath.Base(path), err))
				case err != nil:
					return fmt.Errorf("%s: %w: a plain folder evicts nothing", root, errNoMount)
				}
				if err := unix.Setxattr(path, overmindfs.AttrPinned, []byte(value), 0); err != nil {
					return fmt.Errorf("%s %w", name, gone(filepath.Base(path), err))
				}
				return nil
			})
		},
	}
}

// eachEntry does something with each entry, also after one failed, and returns the errors.
func eachEntry(root string, ids []string, do func(path string) error) error {
	var errs []error
	for _, prefix := range ids {
		id, err := findEntry(root, prefix)
		if err == nil {
			err = do(filepath.Join(pipelinesOf(root), id))
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
