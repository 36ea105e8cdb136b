package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst moves the flags of a command in front of its arguments, since cli stops looking for flags at the first
// argument and people type "mount DIR --max-bytes 8GiB". Everything after "--" stays where it is.
func flagsFirst(app *cli.App, args []string) []string {
	at := slices.IndexFunc(args, func(a string) bool { return app.Command(a) != nil })
	if at < 1 {
		return args
	}
	takesValue := map[string]bool{}
	for _, f := range app.Command(args[at]).Flags {
		_, isBool := f.(*cli.BoolFlag)
		for _, name := range f.Names() {
			takesValue[name] = !isBool
		}
	}
	var flags, rest []string
	for i := at + 1; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if takesValue[name] && !joined && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	out := slices.Concat(args[:at+1], flags)
	if len(rest) > 0 {
		out = append(append(out, "--"), rest...)
	}
	return out
}
