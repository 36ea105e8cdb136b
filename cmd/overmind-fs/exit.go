package main

import (
	"errors"
	"syscall"
)

// Exit codes.
const (
	exitOK       = 0
	exitFailure  = 1 // it did not work; the message says why
	exitUsage    = 2 // a flag or an argument is wrong
	exitNotFound = 3 // no mount there, or no such entry
	exitNoDaemon = 4 // the mount is there, and its daemon is dead or does not answer
)

const exitCodes = `Exit codes:

0: it worked; doctor found nothing

1: it did not work, and the message says why; doctor found something

2: a flag or an argument is wrong

3: there is no cache, or no such entry

4: the daemon of the mount is dead or does not answer`

// usageError is returned for flags and arguments that make no sense.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

var (
	// errNoMount is returned when there is no cache to work on.
	errNoMount = errors.New("not an overmind mount")
	// errNoEntry is returned when an entry does not exist.
	errNoEntry = errors.New("no such entry")
	// errSeveralEntries is returned when one entry is wanted and several fit.
	errSeveralEntries = errors.New("several entries")
	// errDaemonDead is returned for a mount whose daemon was killed.
	errDaemonDead = errors.New("the daemon of this mount is dead")
	// errDaemonSilent is returned for a mount whose daemon hangs.
	errDaemonSilent = errors.New("the daemon of this mount does not answer")
)

// daemonError is how a daemon in the background ended before it served.
type daemonError struct {
	message string
	code    int // of its exit
}

func (e daemonError) Error() string { return e.message }

func exitCode(err error) int {
	var usage usageError
	var daemon daemonError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &daemon):
		return daemon.code
	case errors.Is(err, errDaemonDead), errors.Is(err, errDaemonSilent), errors.Is(err, syscall.ENOTCONN),
		errors.Is(err, syscall.ECONNABORTED):
		return exitNoDaemon
	case errors.Is(err, errNoMount), errors.Is(err, errNoEntry), errors.Is(err, errSeveralEntries):
		return exitNotFound
	default:
		return exitFailure
	}
}
