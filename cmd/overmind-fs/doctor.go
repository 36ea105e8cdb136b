package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/urfave/cli/v2"

	"overmind-fs/cmd/overmind-fs/doctor"
	overmindfs "overmind-fs/fs"
)

func cmdDoctor() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look for what makes the cache slower or less safe than it could be",
		Description: "It looks at the machine, at the cache of --root, or else at all overmind mounts, and for mounts whose daemon " +
			"is dead, and says for each finding what it costs and which command mends it. Exit code 1 if there is an error or a warning; a note costs nothing.",
		Flags: []cli.Flag{rootFlag(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				_, err := cacheRootOnly(c)
				return err
			}
			report, err := examine(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				err = printJSON(report)
			} else {
				err = printReport(os.Stdout, report)
			}
			if n := report.Problems(); err == nil && n > 0 {
				err = fmt.Errorf("%d of %d findings should be mended", n, len(report.Findings))
			}
			return err
		},
	}
}

func examine(c *cli.Context) (doctor.Report, error) {
	machine, err := doctor.ThisMachine()
	if err != nil {
		return doctor.Report{}, err
	}
	machine.CacheRoot, machine.Version = c.String("root"), buildVersion()
	mount := c.App.Command("mount")
	machine.CanReplace = machine.UID == 0 &&
		slices.ContainsFunc(mount.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), "replace") })
	dirs, err := overmindfs.MountPoints()
	if err != nil {
		return doctor.Report{}, err
	}
	root := machine.CacheRoot
	if root != "" {
		if dir, err := mountPointOf(root); err == nil { // else its parent is not there
			root = dir
		}
		if !slices.Contains(dirs, root) {
			dirs = append(dirs, root)
		}
	}
	var mounts []doctor.Mount
	for _, dir := range dirs {
		look := doctor.Look
		if root != "" && dir != root {
			look = doctor.Probe
		}
		m, err := look(dir)
		m.Wanted = dir == root
		switch {
		case err != nil && m.Wanted:
			return doctor.Report{}, err
		case err != nil:
			continue // it went in the meantime
		}
		machine.LargestFit = max(machine.LargestFit, m.LargestFit)
		mounts = append(mounts, m)
	}
	return doctor.Examine(machine, mounts), nil
}

func printReport(w io.Writer, r doctor.Report) error {
	for _, f := range r.Findings {
		where := ""
		if f.Where != "" {
			where = f.Where + ": "
		}
		if _, err := fmt.Fprintf(w, "%-8s %s%s\n  cost   %s\n  mend   %s\n\n",
			f.Severity, where, printable(f.What), f.Cost, f.Fix); err != nil {
			return err
		}
	}
	for _, a := range r.Access {
		if _, err := fmt.Fprintf(w, "%s: programs reach the arenas by %s\n", a.Where, a.Way); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s, %s\n", english.Plural(len(r.Checks), "check", ""), english.Plural(len(r.Findings), "finding", ""))
	return err
}
