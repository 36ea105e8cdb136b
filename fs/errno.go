package fs

import (
	"context"
	"errors"
	"syscall"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// errnos maps errors to what a program sees; the first match counts.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	{store.ErrNotFound, syscall.ENOENT},
	{store.ErrExists, syscall.EEXIST},
	{store.ErrName, syscall.EINVAL},
	{store.ErrNotOwner, syscall.EPERM},
	{store.ErrNotEmpty, syscall.ENOTEMPTY},
	{store.ErrClosed, syscall.ESHUTDOWN},
	// The kernel resolves the path once more, and so finds the new mount: a program never sees this number.
	{store.ErrSuperseded, syscall.ESTALE},
	{store.ErrNoSpace, syscall.ENOSPC},
	{store.ErrTooMany, syscall.EDQUOT},
	{store.ErrTooLarge, syscall.EFBIG},
	{store.ErrResize, syscall.EINVAL},
	{store.ErrReadOnly, syscall.EROFS},
	{store.ErrBusy, syscall.EBUSY},
	{store.ErrWriters, syscall.ETXTBSY},
	{store.ErrIncomplete, syscall.EINVAL},
	{store.ErrSeals, syscall.EIO},
	{schema.ErrMalformed, syscall.EINVAL},
	{schema.ErrInvalid, syscall.EINVAL},
	{schema.ErrTooLong, syscall.EFBIG},
	{context.Canceled, syscall.EINTR},
	{errForbidden, syscall.EPERM},
	{errOtherFolder, syscall.EXDEV},
	{errUnsupported, syscall.ENOTSUP},
	{errArgument, syscall.EINVAL},
	{errNoAttribute, syscall.ENODATA},
	{errRange, syscall.ERANGE},
	{errNeverAsk, syscall.ENOSYS},
	{schema.ErrFrame, syscall.EMSGSIZE},
	{schema.ErrRequest, syscall.EBADMSG},
	{schema.ErrVersion, syscall.EPROTONOSUPPORT},
}

// Errors that arise in this package.
var (
	// errForbidden is returned for changes that the tree has no place for.
	errForbidden = errors.New("not possible here")
	// errOtherFolder is returned for renames other than a commit.
	errOtherFolder = errors.New("renamed to a place it cannot go to")
	// errUnsupported is returned for extended attributes that cannot be set.
	errUnsupported = errors.New("not supported")
	// errArgument is returned for values that mean nothing.
	errArgument = errors.New("bad argument")
	// errNoAttribute is returned for extended attributes that do not exist.
	errNoAttribute = errors.New("no such attribute")
	// errNeverAsk is returned for requests that the kernel need not send.
	errNeverAsk = errors.New("not needed")
	// errRange is returned when a buffer for an extended attribute is too small.
	errRange = errors.New("buffer too small")
)

// toErrno is the only place where errors become numbers. What it does not know is the number that a system call
// failed with, or else EIO.
func toErrno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	for _, m := range errnos {
		if errors.Is(err, m.err) {
			return m.errno
		}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EIO
}
