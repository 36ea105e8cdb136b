// Command overmind-fs mounts a cache of loaded PyTorch models and looks after it. Everything but mount and umount is
// file operations on the mount, so those commands also work on a plain folder with the same layout.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/urfave/cli/v2"
)

// version is set by the linker; a plain build takes what the module says.
var version = ""

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func newApp() *cli.App {
	onUsageError := func(_ *cli.Context, err error, _ bool) error { return usageError{err.Error()} }
	app := &cli.App{
		Name:                 "overmind-fs",
		Usage:                "a file system that holds loaded PyTorch models",
		Description:          exitCodes,
		Flags:                []cli.Flag{rootFlag()},
		Version:              buildVersion(),
		HideHelpCommand:      true,
		EnableBashCompletion: true,
		Commands: []*cli.Command{
			cmdMount(), cmdUmount(), cmdLs(), cmdShow(), cmdDu(), cmdTop(), cmdEvict(), cmdPin(), cmdUnpin(), cmdStatus(),
			cmdDoctor(), cmdCompletion(), cmdMan(),
		},
		// main prints errors and exits.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError:   onUsageError,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageError{fmt.Sprintf("no command %q; see overmind-fs --help", c.Args().First())}
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = onUsageError
		c.HideHelpCommand = true
	}
	return app
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	app := newApp()
	return app.RunContext(ctx, flagsFirst(app, args))
}

func main() {
	err := run(os.Args)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "overmind-fs:", err)
	os.Exit(exitCode(err))
}
