package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"strconv"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"github.com/dustin/go-humanize"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
)

// gcPercent is low because what the daemon allocates is little, and what it keeps is taken from the cache.
const gcPercent = 50

// Run mounts and serves until ctx ends or somebody unmounts.
func (o MountOptions) Run(ctx context.Context) error {
	logger, closeLog, err := o.logger()
	if err != nil {
		return err
	}
	defer closeLog()
	dir, predecessor, err := o.mountPoint(logger)
	if err != nil {
		return err
	}
	uid, gid, err := o.owner()
	if err != nil {
		return err
	}
	if err := raiseSizeLimits(logger); err != nil {
		return err
	}
	maxFiles := raiseFileLimit(logger)
	debug.SetGCPercent(gcPercent)
	metrics, err := o.listenMetrics(predecessor != "")
	if err != nil {
		return err
	}
	defer metrics.close()
	watcher, pressureErr := o.watchPressure()
	defer watcher.Close() //nolint:staticcheck // does nothing where there is none

	calls := store.NewOS()
	if err := store.ProbeMemfd(calls); err != nil {
		return err
	}
	hugeErr := store.ProbeHugePages(calls)
	options := store.Options{
		MaxBytes: o.MaxBytes, MaxEntries: o.MaxEntries, MaxFiles: maxFiles, TTL: o.TTL,
		HugePages: hugeErr == nil, OS: calls, Logger: logger,
	}
	keeper, kept := openKeeper(logger)
	if keeper != nil {
		defer keeper.Close()
		options.Keeper = keeper
	}
	s := store.New(options)
	defer s.Close()
	if err := restore(keeper, kept, predecessor == "", s); err != nil {
		return err
	}
	m, err := overmindfs.New(overmindfs.Options{
		Dir: dir, Store: s, Logger: logger, Version: buildVersion(),
		UID: uid, GID: gid, AllowOther: o.AllowOther, Share: o.Share, Served: o.User != "",
		Passthrough: o.Passthrough, FDPassing: o.FDPassing, ControlDir: o.ControlDir, HugePages: hugeErr, Pressure: pressureErr,
		Debug: o.LogLevel < slog.LevelDebug, Detached: predecessor != "",
	})
	if err != nil {
		return err
	}
	if predecessor != "" {
		if err := takeOver(ctx, m, predecessor, dir, logger); err != nil {
			return err
		}
	}
	st := m.Status()
	logger.Info("mounted", "dir", dir, "version", st.Version, "pid", st.PID, "uid", uid,
		"max_bytes", humanize.IBytes(o.MaxBytes),
		"passthrough", st.Passthrough.Active, "passthrough_reason", st.Passthrough.Reason,
		"fd_passing", st.FDPassing.Active, "fd_passing_reason", st.FDPassing.Reason,
		"huge_pages", st.HugePages.Active, "huge_pages_reason", st.HugePages.Reason,
		"pressure", st.Pressure.Active, "pressure_reason", st.Pressure.Reason, "metrics", metrics.addr())
	metrics.serve(m.Metrics(), logger)
	stop := housekeep(ctx, s, watcher, logger)
	defer stop()
	readyPipe().ready()
	notifyReady(predecessor != "", logger)
	if keeper != nil {
		keeper.Start()
	}

	select {
	case <-m.Done():
		logger.Info("unmounted by somebody else", "dir", dir)
		return nil
	case <-m.Superseded():
		stop()
		metrics.close()
		return outlive(ctx, m, s, logger)
	case <-ctx.Done():
	}
	notify(sdnotify.SdNotifyStopping, logger)
	lazy, err := m.Unmount()
	if err != nil {
		return err
	}
	logger.Info("unmounted", "dir", dir, "while_in_use", lazy)
	return nil
}

// owner returns who owns the root folder of the mount.
func (o MountOptions) owner() (uid, gid uint32, err error) {
	if o.User == "" {
		return uint32(os.Geteuid()), uint32(os.Getegid()), nil
	}
	u, err := user.Lookup(o.User)
	if err != nil {
		var idErr error
		if u, idErr = user.LookupId(o.User); idErr != nil {
			return 0, 0, fmt.Errorf("--user: %w", err)
		}
	}
	id, err1 := strconv.ParseUint(u.Uid, 10, 32)
	group, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group), errors.Join(err1, err2)
}

func (o MountOptions) logger() (*slog.Logger, func(), error) {
	var out io.Writer = os.Stderr
	closeLog := func() {}
	if o.LogFile != "" {
		f, err := os.OpenFile(o.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		out, closeLog = f, func() { _ = f.Close() }
	}
	options := &slog.HandlerOptions{Level: o.LogLevel}
	if o.LogJSON {
		return slog.New(slog.NewJSONHandler(out, options)), closeLog, nil
	}
	return slog.New(slog.NewTextHandler(out, options)), closeLog, nil
}

// prepareMountPoint returns the absolute path of an empty folder that nothing is mounted on, after it has detached
// what a daemon that was killed left there.
func prepareMountPoint(path string, logger *slog.Logger) (string, error) {
	dir, err := overmindfs.MountPoint(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", noFolder(path)
	}
	if err != nil {
		return "", err
	}
	for {
		health, err := overmindfs.ProbeMount(dir)
		switch health {
		case overmindfs.NotMounted:
			if err != nil {
				return "", err
			}
			return emptyFolder(dir)
		case overmindfs.OtherMount:
			kind, _ := overmindfs.MountedType(dir)
			return "", fmt.Errorf("%s: another file system (%s) is mounted there", dir, kind)
		case overmindfs.AliveMount:
			return "", fmt.Errorf("%s: an overmind cache is mounted there already", dir)
		case overmindfs.SilentMount:
			return "", fmt.Errorf("%s: an overmind cache is mounted there: %w: end it, or \"overmind-fs umount %s\" first", dir, errDaemonSilent, dir)
		}
		if err := overmindfs.Detach(dir, true); err != nil {
			return "", fmt.Errorf("%s: the daemon of this mount is dead, and it cannot be detached: %w", dir, err)
		}
		logger.Warn("detached a mount whose daemon is dead", "dir", dir)
	}
}

func noFolder(path string) error { return fmt.Errorf("%s: no such folder", path) }

func emptyFolder(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", noFolder(dir)
	case err != nil:
		return "", err
	case real != dir:
		return prepareMountPoint(real, slog.New(slog.DiscardHandler)) // a symbolic link: look again where it leads
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s: not a folder", dir)
	}
	if _, err := f.Readdirnames(1); err == nil {
		return "", fmt.Errorf("%s: the folder is not empty", dir)
	} else if !errors.Is(err, io.EOF) {
		return "", err
	}
	return dir, nil
}
