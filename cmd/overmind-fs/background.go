package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/journal"

	overmindfs "overmind-fs/fs"
)

// readyEnv names the file descriptor on which a daemon in the background tells its parent how the mount went: readyOK,
// or else the message of an error.
const (
	readyEnv = "OVERMIND_READY_FD"
	readyOK  = "ok\n"
	stateDir = "overmind-fs"
)

// pipe is the child's end; nil when there is no parent to tell.
type pipe struct{ f *os.File }

var theReadyPipe *pipe

func readyPipe() *pipe {
	if theReadyPipe == nil {
		theReadyPipe = &pipe{}
		if fd, err := strconv.Atoi(os.Getenv(readyEnv)); err == nil {
			syscall.CloseOnExec(fd)
			theReadyPipe.f = os.NewFile(uintptr(fd), "ready")
			_ = os.Unsetenv(readyEnv)
		}
	}
	return theReadyPipe
}

func (p *pipe) tell(message string) {
	if p.f != nil {
		_, _ = p.f.WriteString(message) // the parent may be gone; then nobody wants to know
		_ = p.f.Close()
		p.f = nil
	}
}

func (p *pipe) ready() { p.tell(readyOK) }

// report passes the error that ended the daemon to the parent, if that still waits.
func (p *pipe) report(err error) error {
	if err != nil {
		p.tell(err.Error())
	}
	return err
}

// startBackground starts the same command again, detached, and waits until its mount answers.
func startBackground(ctx context.Context, o MountOptions) error {
	log, err := o.backgroundLog()
	if err != nil {
		return err
	}
	if log != os.Stderr {
		defer func() { _ = log.Close() }()
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()

	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool {
		return slices.Contains([]string{"-b", "--b", "-background", "--background"}, strings.TrimSuffix(a, "=true"))
	})
	child := exec.Command(program, args...)
	child.Env = append(os.Environ(), readyEnv+"=3")
	if !o.Replace {
		// Started by a service of somebody else, it must not speak for that. In a reload it speaks for its own.
		child.Env = slices.DeleteFunc(child.Env, func(v string) bool { return strings.HasPrefix(v, notifySocketEnv+"=") })
	}
	child.ExtraFiles = []*os.File{w}
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = child.Start()
	_ = w.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	answer, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if string(answer) == readyOK {
		fmt.Printf("mounted %s (pid %d, log %s)\n", o.Dir, child.Process.Pid, log.Name())
		return child.Process.Release()
	}
	if err := child.Wait(); err == nil {
		return errors.New("the daemon ended before the mount was there")
	}
	message := strings.TrimSpace(string(answer))
	if message == "" {
		return fmt.Errorf("the daemon died, see %s", log.Name())
	}
	return daemonError{message, child.ProcessState.ExitCode()}
}

// backgroundLog is where the daemon writes: to the journal where that is where we write.
func (o MountOptions) backgroundLog() (*os.File, error) {
	path := o.LogFile
	if path == "" {
		if is, err := journal.StderrIsJournalStream(); is && err == nil {
			return os.Stderr, nil
		}
	}
	if path == "" {
		var err error
		if path, err = defaultLogFile(o.Dir); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--log-file: %w", err)
	}
	return log, nil
}

// defaultLogFile is named after the mount point and lies in $XDG_STATE_HOME/overmind-fs.
func defaultLogFile(dir string) (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = os.TempDir()
		}
		base = filepath.Join(home, ".local", "state")
	}
	mount, err := overmindfs.MountPoint(dir)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(base, stateDir)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("no folder for the log (--log-file FILE chooses another place): %w", err)
	}
	name := strings.ReplaceAll(strings.TrimPrefix(mount, "/"), "/", "-")
	return filepath.Join(folder, name+".log"), nil
}
