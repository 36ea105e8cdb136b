package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/coreos/go-systemd/v22/activation"
	sdnotify "github.com/coreos/go-systemd/v22/daemon"

	"overmind-fs/fs/fdstore"
	"overmind-fs/fs/store"
)

// Environment of a service of systemd.
const (
	notifySocketEnv = "NOTIFY_SOCKET"
	fdStoreEnv      = "FDSTORE" // how many descriptors the manager keeps; since systemd 254
)

// openKeeper returns what keeps entries over a crash, nil where this is no service that does, and, if wanted, what it
// has kept.
func openKeeper(calls *store.OS, restore bool, logger *slog.Logger) (*fdstore.Keeper, []*store.Adoption) {
	passed := activation.Files(true)
	socket := os.Getenv(notifySocketEnv)
	if socket == "" {
		return nil, nil
	}
	limit := 0
	if v := os.Getenv(fdStoreEnv); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			logger.Warn("not a number of descriptors", "variable", fdStoreEnv, "value", v)
		}
		limit = n
	}
	keeper, err := fdstore.Open(socket, limit, logger)
	if err != nil {
		logger.Warn("entries do not outlive a crash", "error", err)
		return nil, nil
	}
	if !restore {
		for _, f := range passed {
			_ = f.Close()
		}
		return keeper, nil
	}
	return keeper, keeper.Restore(passed, calls)
}

// notify tells systemd how far this service is.
func notify(state string, logger *slog.Logger) {
	if _, err := sdnotify.SdNotify(false, state); err != nil {
		logger.Warn("the service manager was not reached", "message", state, "error", err)
	}
}

// notifyReady says that the mount is there; after a takeover also that this process is the service's main one now.
func notifyReady(tookOver bool, logger *slog.Logger) {
	state := sdnotify.SdNotifyReady
	if tookOver {
		state = fmt.Sprintf("MAINPID=%d\n%s", os.Getpid(), state)
	}
	notify(state, logger)
}
