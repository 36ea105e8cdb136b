package main

import (
	"errors"
	"io/fs"
)

// Exit codes.
const (
	exitOK       = 0
	exitFailure  = 1 // it did not work; the message says why
	exitUsage    = 2 // a flag or an argument is wrong
	exitNotFound = 3 // no mount there, or no such entry
)

// usageError is returned for flags and arguments that make no sense.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

var (
	// errNoMount is returned when there is no cache to work on.
	errNoMount = errors.New("not an overmind mount")
	// errNoEntry is returned when an entry does not exist, or a prefix fits several.
	errNoEntry = errors.New("no such entry")
)

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, errNoMount), errors.Is(err, errNoEntry), errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	default:
		return exitFailure
	}
}
