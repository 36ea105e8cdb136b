package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v2"
)

func cmdMount() *cli.Command {
	return &cli.Command{
		Name:      "mount",
		Usage:     "mount a cache and serve it until it is unmounted",
		ArgsUsage: "DIR",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "background", Aliases: []string{"b"}, Usage: "return once the mount answers, serve in the background"},
			&cli.BoolFlag{Name: "replace", Usage: "take over from the daemon that is mounted there, with all it has, without a gap"},
			&cli.StringFlag{Name: "user", Usage: "as root: serve this `USER`, who alone may use the mount"},
			&cli.BoolFlag{Name: "allow-other", Usage: "let every user use the mount, each with entries of their own"},
			&cli.BoolFlag{Name: "share", Usage: "with --allow-other: let users read each other's entries"},
			&cli.StringFlag{Name: "max-bytes", Value: "50%", Usage: "budget: a `SIZE` such as 16GiB, or a share of the memory such as 50%"},
			&cli.IntFlag{Name: "max-entries", Usage: "keep at most `N` entries (0: no limit)"},
			&cli.StringFlag{Name: "ttl", Value: "0", Usage: "evict entries that nobody has used for `TIME`, such as 90m, 12h or 7d (0: never)"},
			&cli.StringFlag{Name: "pressure", Value: "10%", Usage: "evict idle entries when processes wait for memory during this `SHARE` of the time, or off"},
			&cli.StringFlag{Name: "metrics-addr", Usage: "also serve the metrics by HTTP on `HOST:PORT`, under /metrics"},
			&cli.StringFlag{Name: "passthrough", Value: "auto", Usage: "let the kernel serve arenas itself: auto or off"},
			&cli.StringFlag{Name: "fd-passing", Value: "auto", Usage: "hand arenas to clients over a socket: auto or off"},
			&cli.StringFlag{Name: "control-dir", Usage: "make that socket in `FOLDER` instead of /run; beside DIR it is seen by containers that bind the parent of DIR"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
			&cli.StringFlag{Name: "log-format", Value: "text", Usage: "text or json"},
			&cli.StringFlag{Name: "log-file", Usage: "append the log to `FILE` (with --background a default exists)"},
		},
		Action: func(c *cli.Context) error {
			opts, err := mountOptionsOf(c)
			if err != nil {
				return err
			}
			if opts.Background {
				return startBackground(c.Context, opts)
			}
			return readyPipe().report(opts.Run(c.Context))
		},
	}
}

// MountOptions are what the flags of mount say.
type MountOptions struct {
	Dir         string
	Replace     bool
	User        string
	AllowOther  bool
	Share       bool
	MaxBytes    uint64
	MaxEntries  int
	TTL         time.Duration // 0: entries do not expire
	Pressure    float64       // share of the time, 0: not watched
	MetricsAddr string        // "": not served by HTTP
	Passthrough bool
	FDPassing   bool
	ControlDir  string // "": the daemon chooses
	LogLevel    slog.Level
	LogJSON     bool
	LogFile     string
	Background  bool
}

func mountOptionsOf(c *cli.Context) (MountOptions, error) {
	if c.NArg() != 1 {
		return MountOptions{}, usageError{fmt.Sprintf("mount needs one folder, got %d arguments", c.NArg())}
	}
	o := MountOptions{
		Dir: c.Args().First(), Replace: c.Bool("replace"), User: c.String("user"), AllowOther: c.Bool("allow-other"),
		Share:      c.Bool("share"),
		MaxEntries: c.Int("max-entries"), MetricsAddr: c.String("metrics-addr"), ControlDir: c.String("control-dir"),
		LogFile: c.String("log-file"), Background: c.Bool("background"),
	}
	var err error
	if o.Pressure, err = parsePressure(c.String("pressure")); err != nil {
		return o, usageError{fmt.Sprintf("--pressure: %v", err)}
	}
	if o.TTL, err = parseAge("ttl", c.String("ttl")); err != nil {
		return o, err
	}
	if o.MaxBytes, err = parseBudget(c.String("max-bytes")); err != nil {
		return o, usageError{fmt.Sprintf("--max-bytes: %v", err)}
	}
	for name, wanted := range map[string]*bool{"passthrough": &o.Passthrough, "fd-passing": &o.FDPassing} {
		switch v := c.String(name); v {
		case "auto", "off":
			*wanted = v == "auto"
		default:
			return o, usageError{fmt.Sprintf("--%s is auto or off, not %q", name, v)}
		}
	}
	switch v := c.String("log-format"); v {
	case "text", "json":
		o.LogJSON = v == "json"
	default:
		return o, usageError{fmt.Sprintf("--log-format is text or json, not %q", v)}
	}
	if err := o.LogLevel.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return o, usageError{fmt.Sprintf("--log-level is debug, info, warn or error, not %q", c.String("log-level"))}
	}
	return o, o.Validate()
}

// Validate checks what the flags cannot check one by one.
func (o MountOptions) Validate() error {
	if o.MaxEntries < 0 {
		return usageError{fmt.Sprintf("--max-entries must not be negative: %d", o.MaxEntries)}
	}
	if o.User != "" && os.Geteuid() != 0 {
		return usageError{"--user is for root, who mounts for somebody else; without root, just leave it out"}
	}
	if o.Replace && os.Geteuid() != 0 {
		return usageError{"--replace is for root; without root, umount and mount again"}
	}
	if o.User != "" && o.AllowOther {
		return usageError{"--user gives the mount to one user, --allow-other to all: choose one"}
	}
	if o.Share && !o.AllowOther {
		return usageError{"--share is for --allow-other: without it there is only one user"}
	}
	if o.ControlDir != "" && !o.FDPassing {
		return usageError{"--control-dir is for a socket that --fd-passing=off does not make"}
	}
	if _, _, err := o.owner(); err != nil {
		return usageError{err.Error()}
	}
	return nil
}
