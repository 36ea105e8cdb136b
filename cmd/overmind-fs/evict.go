package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func cmdEvict() *cli.Command {
	return &cli.Command{
		Name:      "evict",
		Usage:     "remove entries",
		ArgsUsage: "ID…",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "all", Usage: "remove all entries, also pinned ones"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("all") == c.Args().Present() {
				return usageError{"evict needs ids, or --all"}
			}
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			ids := c.Args().Slice()
			if c.Bool("all") {
				if ids, err = entryIDs(root); err != nil {
					return err
				}
			}
			return eachEntry(root, ids, removeEntry)
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

// removeEntry takes one step on a mount; a plain folder has to be emptied.
func removeEntry(path string) error {
	err := unix.Rmdir(path)
	if errors.Is(err, unix.ENOTEMPTY) {
		err = os.RemoveAll(path)
	}
	if err != nil {
		return fmt.Errorf("evict %s: %w", filepath.Base(path), err)
	}
	return nil
}
