package main

import (
	"embed"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Each script asks overmind-fs itself how a line can go on, so that ids are completed too.
//
//go:embed completion
var completionScripts embed.FS

func cmdCompletion() *cli.Command {
	return &cli.Command{
		Name:        "completion",
		Usage:       "print the completion script of a shell",
		ArgsUsage:   "bash|zsh|fish",
		Description: "For this shell only: source <(overmind-fs completion bash). \"make install\" puts the scripts where the shells look.",
		BashComplete: func(*cli.Context) {
			for _, shell := range shells() {
				fmt.Println(shell)
			}
		},
		Action: func(c *cli.Context) error {
			script, err := completionScripts.ReadFile("completion/" + c.Args().First())
			if c.NArg() != 1 || err != nil {
				return usageError{fmt.Sprintf("completion needs one of %s, got %q", strings.Join(shells(), ", "), c.Args().Slice())}
			}
			_, err = os.Stdout.Write(script)
			return err
		},
	}
}

func shells() []string {
	files, err := completionScripts.ReadDir("completion")
	if err != nil {
		panic(err) // it is part of the program
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// completeIDs prints the ids, or the flags when the last word of the line starts one.
func completeIDs(c *cli.Context) {
	if word := os.Args[len(os.Args)-2]; strings.HasPrefix(word, "-") && !isSwitch(c.Command, word) {
		cli.DefaultCompleteWithFlags(c.Command)(c)
		return
	}
	root, err := cacheRoot(c)
	if err != nil {
		return // there is nobody to tell
	}
	ids, err := entryIDs(root)
	if err != nil {
		return
	}
	for _, id := range ids {
		fmt.Println(id)
	}
}

// isSwitch says whether a word is a flag that is complete.
func isSwitch(command *cli.Command, word string) bool {
	name, _, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
	return joined || slices.ContainsFunc(command.Flags, func(f cli.Flag) bool {
		_, isBool := f.(*cli.BoolFlag)
		return isBool && slices.Contains(f.Names(), name)
	})
}
