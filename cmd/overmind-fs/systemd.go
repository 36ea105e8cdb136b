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

// openKeeper returns what keeps entries over a crash, nil where this is no service that does, and the descriptors that it
// has kept, for Restore or to be closed.
func openKeeper(logger *slog.Logger) (*fdstore.Keeper, []*os.File) {
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
	return keeper, passed
}

// restore puts what a keeper has kept into the store. What another daemon hands over is newer; then nothing is wanted.
func restore(keeper *fdstore.Keeper, kept []*os.File, wanted bool, s *store.Store) error {
	if wanted && keeper != nil {
		return s.Adopt(keeper.Restore(kept, s))
	}
	for _, f := range kept {
		_ = f.Close()
	}
	return nil
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
