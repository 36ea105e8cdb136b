package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/store"
)

// mountPoint returns the folder to mount on and, with --replace, the control socket of the daemon that is mounted
// there; where none is, --replace mounts like a plain mount.
func (o MountOptions) mountPoint(logger *slog.Logger) (dir, predecessor string, err error) {
	if o.Replace {
		dir, err = resolved(o.Dir)
		if err != nil {
			return "", "", err
		}
		if health, _ := overmindfs.ProbeMount(dir); health == overmindfs.AliveMount {
			predecessor, err = overmindfs.ControlSocket(dir)
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("%s: the running daemon cannot be replaced: %w", dir, overmindfs.ErrFDPassingOff)
			}
			return dir, predecessor, err
		}
	}
	dir, err = prepareMountPoint(o.Dir, logger)
	return dir, "", err
}

// resolved follows a symbolic link to a mount point, without a look at the mount itself.
func resolved(path string) (string, error) {
	dir, err := overmindfs.MountPoint(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", noFolder(path)
	}
	if err != nil {
		return "", err
	}
	if kind, err := overmindfs.MountedType(dir); err != nil || kind != "" {
		return dir, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real, nil
	}
	return dir, nil // prepareMountPoint says what is wrong with it
}

// takeOver gets the place of the running daemon, or leaves it as it is.
func takeOver(ctx context.Context, m *overmindfs.Mount, socket, dir string, logger *slog.Logger) error {
	begun := time.Now()
	pid, err := m.TakeOver(ctx, socket)
	if err != nil {
		_, _ = m.Unmount()
		return fmt.Errorf("%s: not taken over: %w", dir, err)
	}
	st := m.Status()
	logger.Info("took over", "dir", dir, "from_pid", pid, "entries", st.Entries, "bytes", st.Bytes.Cached,
		"fills", st.Fills.Staging, "took", time.Since(begun).Round(time.Millisecond))
	return nil
}

// outlive serves what is open after another daemon has taken over.
func outlive(ctx context.Context, m *overmindfs.Mount, s *store.Store, logger *slog.Logger) error {
	logger.Info("another daemon has taken over; this one ends when the last open file is closed")
	retire := time.NewTimer(overmindfs.RetireAfter)
	defer retire.Stop()
	for {
		select {
		case <-retire.C:
			s.Retire()
		case <-m.Done():
			logger.Info("the last open file was closed")
			return nil
		case <-ctx.Done():
			logger.Info("ended while files are open")
			return nil
		}
	}
}
