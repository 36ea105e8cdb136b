package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
)

func cmdEvict() *cli.Command {
	return &cli.Command{
		Name:      "evict",
		Usage:     "remove entries",
		ArgsUsage: "ID…",
		Description: "An ID may be shortened to a start that fits one entry only; one that fits several removes nothing. " +
			"An entry given by its ID goes even if it is pinned. What programs have mapped stays in memory until they let go.",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.BoolFlag{Name: "all", Usage: "all entries that are not pinned"},
			&cli.BoolFlag{Name: "prefix", Usage: "all entries that start with one of the arguments and are not pinned"},
			&cli.StringFlag{Name: "older-than", Usage: "of these, or else of all, the ones not used for `TIME`, such as 90m, 24h or 7d"},
			&cli.BoolFlag{Name: "force", Usage: "with --all, --prefix and --older-than: pinned ones too"},
		},
		BashComplete: completeIDs,
		Action: func(c *cli.Context) error {
			s, err := selectionOf(c)
			if err != nil {
				return err
			}
			root, err := cacheRoot(c)
			if err != nil {
				return err
			}
			if err := checkRemovable(root); err != nil {
				return err
			}
			return s.evict(root)
		},
	}
}

// selection says which entries are meant.
type selection struct {
	all       bool
	args      []string
	prefixes  bool // args are prefixes that may fit several
	olderThan time.Duration
	now       time.Time
	force     bool
}

func selectionOf(c *cli.Context) (selection, error) {
	s := selection{all: c.Bool("all"), args: c.Args().Slice(), prefixes: c.Bool("prefix"), force: c.Bool("force"), now: time.Now()}
	if text := c.String("older-than"); c.IsSet("older-than") {
		d, err := parseAge("older-than", text)
		if err != nil {
			return s, err
		}
		if d == 0 {
			return s, usageError{"--older-than 0 is --all"}
		}
		s.olderThan = d
	}
	switch {
	case s.all && len(s.args) > 0:
		return s, usageError{fmt.Sprintf("evict --all takes no ids, got %q", s.args[0])}
	case !s.all && len(s.args) == 0 && (s.prefixes || s.olderThan == 0):
		return s, usageError{"evict needs ids, --older-than or --all"}
	case s.prefixes && slices.Contains(s.args, ""):
		return s, usageError{"evict --prefix needs prefixes that are not empty; --all means all"}
	case s.force && !s.many():
		return s, usageError{"--force goes with --all, --prefix and --older-than; an entry given by its id goes anyway"}
	}
	return s, nil
}

// many says whether the entries are not given one by one.
func (s selection) many() bool { return s.all || s.prefixes || s.olderThan > 0 }

// evict removes the entries, also after one failed, and says what became free.
func (s selection) evict(root string) error {
	ids, errs := s.ids(root)
	var freed, draining uint64
	removed := 0
	for _, id := range ids {
		e, err := s.look(root, id)
		if err == nil && e != nil {
			err = removeEntry(root, id)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if e == nil {
			continue
		}
		removed++
		if e.leases > 0 {
			draining += e.bytes - e.shared
			fmt.Printf("evicted %s: %s, held until its leases end: %s\n", id, humanize.IBytes(e.bytes), e.leasedBy())
			continue
		}
		freed += e.bytes - e.shared
		fmt.Printf("evicted %s: %s\n", id, humanize.IBytes(e.bytes))
	}
	fmt.Printf("%d evicted, %s freed", removed, humanize.IBytes(freed))
	if draining > 0 {
		fmt.Printf(", %s when programs let go", humanize.IBytes(draining))
	}
	fmt.Println()
	return errors.Join(errs...)
}

// ids are the entries that may be meant, each once.
func (s selection) ids(root string) (ids []string, errs []error) {
	if !s.prefixes && len(s.args) > 0 {
		for _, prefix := range s.args {
			id, err := findEntry(root, prefix)
			switch {
			case err != nil:
				errs = append(errs, err)
			case !slices.Contains(ids, id):
				ids = append(ids, id)
			}
		}
		return ids, errs
	}
	all, err := entryIDs(root)
	if err != nil {
		return nil, []error{err}
	}
	if !s.prefixes {
		return all, nil
	}
	fits := map[string]bool{}
	for _, prefix := range s.args {
		found := false
		for _, id := range all {
			if strings.HasPrefix(id, prefix) {
				found, fits[id] = true, true
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("%w: %q", errNoEntry, prefix))
		}
	}
	for _, id := range all {
		if fits[id] {
			ids = append(ids, id)
		}
	}
	return ids, errs
}

// look returns an entry if it is meant indeed, nil otherwise. One that cannot be read can be removed all the same.
func (s selection) look(root, id string) (*entry, error) {
	e, err := readEntry(root, id)
	if err != nil {
		path := filepath.Join(pipelinesOf(root), id)
		if _, gone := os.Lstat(path); gone != nil {
			return nil, nil // somebody else was faster
		}
		if s.olderThan > 0 {
			return nil, err
		}
		e = &entry{id: id, path: path}
	}
	if s.olderThan > 0 {
		if !e.live {
			return nil, fmt.Errorf("%s: %w: a plain folder does not know when an entry was used", root, errNoMount)
		}
		if s.now.Sub(e.lastUse) < s.olderThan {
			return nil, nil
		}
	}
	if e.pinned && s.many() && !s.force {
		fmt.Printf("kept %s: it is pinned (--force removes it too)\n", id)
		return nil, nil
	}
	return e, nil
}

// removeEntry takes one step on a mount. On a plain folder the entry first leaves its place, whole: a reader must not
// find a part of it.
func removeEntry(root, id string) error {
	path := filepath.Join(pipelinesOf(root), id)
	err := unix.Rmdir(path)
	if errors.Is(err, unix.ENOTEMPTY) {
		// "overmind gc" removes what has such a name, if this process cannot.
		aside := filepath.Join(root, "staging", fmt.Sprintf(".old-%s.%d", id, os.Getpid()))
		switch err = unix.Rename(path, aside); {
		case err == nil:
			err = os.RemoveAll(aside)
		case errors.Is(err, unix.EXDEV): // a lower layer of an overlay. Without a manifest there is no entry
			err = errors.Join(os.Remove(filepath.Join(path, store.ManifestName)), os.RemoveAll(path))
		}
	}
	if err != nil {
		return fmt.Errorf("evict %w", gone(id, err))
	}
	return nil
}
