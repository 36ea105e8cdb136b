package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst moves the flags of a command in front of its arguments, since cli stops looking for flags at the first
// argument and people type "mount DIR --max-bytes 8GiB". A --root before the command goes to the command. Everything
// after "--" stays where it is.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	args, completing := cutCompletion(args)
	early, at := rootBefore(args)
	if at >= len(args) || app.Command(args[at]) == nil {
		return append(args, completing...)
	}
	command := app.Command(args[at])
	takesValue := map[string]bool{}
	for _, f := range command.Flags {
		_, isBool := f.(*cli.BoolFlag)
		for _, name := range f.Names() {
			takesValue[name] = !isBool
		}
	}
	flags, rest := slices.Clone(early), []string(nil)
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
	out := append([]string{args[0], args[at]}, flags...)
	if len(rest) > 0 && completing == nil {
		out = append(out, "--")
	}
	return slices.Concat(out, rest, completing)
}

const completeFlag = "--generate-bash-completion"

// cutCompletion takes off the last argument if a shell put it there to have the line completed; cli wants it to stay the
// last one.
func cutCompletion(args []string) (rest, completing []string) {
	last := len(args) - 1
	if args[last] == completeFlag {
		return args[:last:last], args[last:]
	}
	return args, nil
}

// rootBefore returns the flags before the command, if that is only --root, and where the command is.
func rootBefore(args []string) (flags []string, at int) {
	for at = 1; at < len(args); at++ {
		name, _, joined := strings.Cut(args[at], "=")
		switch {
		case !slices.Contains([]string{"-r", "--r", "-root", "--root"}, name):
			return flags, at
		case joined || at+1 == len(args):
			flags = append(flags, args[at])
		default:
			flags = append(flags, args[at], args[at+1])
			at++
		}
	}
	return flags, at
}
