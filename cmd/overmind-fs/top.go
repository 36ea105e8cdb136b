package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

const minInterval = 100 * time.Millisecond

func cmdTop() *cli.Command {
	return &cli.Command{
		Name:        "top",
		Usage:       "watch the entries, the busiest first",
		Description: "q ends it. Without a terminal it prints once. NO_COLOR is respected.",
		Flags: []cli.Flag{
			rootFlag(),
			&cli.DurationFlag{Name: "interval", Value: 2 * time.Second, Usage: "`TIME` between two looks"},
			&cli.BoolFlag{Name: "once", Usage: "print once and end"},
		},
		Action: func(c *cli.Context) error {
			interval := c.Duration("interval")
			if interval < minInterval {
				return usageError{fmt.Sprintf("--interval is at least %s, not %s", minInterval, interval)}
			}
			root, err := cacheRootOnly(c)
			if err != nil {
				return err
			}
			if c.Bool("once") || !onTerminal() {
				return topOnce(root)
			}
			return topLive(c.Context, root, interval)
		},
	}
}

func topOnce(root string) error {
	s, err := takeSample(root)
	if err != nil {
		return err
	}
	for _, l := range frame(nil, s) {
		fmt.Println(l.text)
	}
	return nil
}

// topLive draws until a key or a signal ends it. Looks are taken beside, so that keys work while a daemon hangs.
func topLive(ctx context.Context, root string, interval time.Duration) error {
	t, err := openScreen()
	if err != nil {
		return err
	}
	defer t.close()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	type result struct {
		sample *sample
		err    error
	}
	var before, last *sample
	looks, next := make(chan result, 1), time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case key := <-t.keys:
			if strings.ContainsRune("qQ\x03\x04", rune(key)) {
				return nil
			}
		case <-resized:
			if last != nil {
				t.draw(frame(before, last))
			}
		case <-next:
			go func() {
				s, err := takeSample(root)
				looks <- result{s, err}
			}()
		case r := <-looks:
			if r.err != nil {
				return r.err
			}
			before, last = last, r.sample
			t.draw(frame(before, last))
			next = time.After(interval)
		}
	}
}

// takeSample looks at a mount.
func takeSample(root string) (*sample, error) {
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	s, err := readSample(root)
	if err != nil {
		// The daemon may have died meanwhile, which says more than the system call that failed.
		if why := checkRoot(root); why != nil {
			err = why
		}
	}
	return s, err
}

func readSample(root string) (*sample, error) {
	status, err := readStatus(root)
	if err != nil {
		return nil, err
	}
	entries, err := readEntries(root)
	if err != nil {
		return nil, err
	}
	s := &sample{at: time.Now(), status: status, entries: map[string]attributes{}}
	for _, e := range entries {
		s.entries[e.id] = e.attributes
	}
	return s, nil
}
