package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

const manSection = 1

func cmdMan() *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "print the manual page, for man -l",
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Sprintf("man takes no arguments, got %q", c.Args().First())}
			}
			text, err := manual()
			if err != nil {
				return err
			}
			_, err = fmt.Print(text)
			return err
		},
	}
}

// manual renders the definition of the command line. The app is a new one, since that which runs has taken defaults from
// the environment.
func manual() (string, error) {
	app := newApp()
	for _, c := range app.Commands {
		c.UsageText = strings.TrimSpace(fmt.Sprintf("%s %s [options] %s", app.Name, c.Name, c.ArgsUsage))
		if c.Description != "" {
			c.Usage += "\n\n" + c.Description // the template has no place for it
		}
	}
	return app.ToManWithSection(manSection)
}
