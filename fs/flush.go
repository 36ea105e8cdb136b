package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
)

// noFlush is embedded by every file handle. The kernel asks for a flush at each close(2) and waits for the answer, so
// that a daemon that hangs would hang whoever closes a file. Nothing here has anything to flush: the first answer makes
// the kernel stop asking, for the whole mount. A release is sent without waiting.
type noFlush struct{}

var _ fusefs.FileFlusher = noFlush{}

func (noFlush) Flush(context.Context) syscall.Errno { return toErrno(errNeverAsk) }
