package store

import "errors"

// Errors about names and callers.
var (
	// ErrNotFound is returned when no entry, staging or file of that name exists, or no longer.
	ErrNotFound = errors.New("no such entry")
	// ErrExists is returned when a staging, a file or, under "no replace", an entry of that name exists already.
	ErrExists = errors.New("exists already")
	// ErrName is returned when a name is not allowed where it is used.
	ErrName = errors.New("name not allowed")
	// ErrNotOwner is returned when the caller is neither the owner nor root.
	ErrNotOwner = errors.New("not the owner")
	// ErrNotEmpty is returned when a folder inside an entry still has names in it.
	ErrNotEmpty = errors.New("folder not empty")
	// ErrSuperseded is returned for changes after another daemon has taken the entries over: they belong there.
	ErrSuperseded = errors.New("another daemon has taken over")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store is closed")
)

// ErrForeign is returned when what another daemon hands over is not what it says.
var ErrForeign = errors.New("cannot be taken over")

// Errors about filling.
var (
	// ErrNoSpace is returned when bytes do not fit, also after evicting everything that may be evicted.
	ErrNoSpace = errors.New("no room")
	// ErrTooMany is returned when a user has as many stagings or open locks, or a staging as many arenas, as there may be.
	ErrTooMany = errors.New("too many")
	// ErrTooLarge is returned when a manifest or a structure.pkl would pass MaxBlobBytes.
	ErrTooLarge = errors.New("file too large")
	// ErrResize is returned when an arena that has its size gets another one, or is written before it has one.
	ErrResize = errors.New("the size of an arena is set once")
	// ErrReadOnly is returned when something in a published entry would be changed.
	ErrReadOnly = errors.New("published entries are read-only")
	// ErrBusy is returned when a commit or an allocation is under way, or a file stayed mapped for writing.
	ErrBusy = errors.New("busy")
	// ErrWriters is returned by Commit when a handle for writing stayed open.
	ErrWriters = errors.New("still open for writing")
	// ErrIncomplete is returned by Commit when a file is missing or an arena never got its size.
	ErrIncomplete = errors.New("staging is incomplete")
	// ErrSeals is returned by Commit when a memfd does not have the seals that were set.
	ErrSeals = errors.New("seals did not hold")
)
