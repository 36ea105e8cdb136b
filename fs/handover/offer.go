package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

const (
	// patience is how long one message may take while nothing waits for it.
	patience = 30 * time.Second
	// frozenPatience is how long the part may take during which changes wait; loaders give a daemon three seconds.
	frozenPatience = 2 * time.Second
)

// Offer answers a request to take over: it sends all that s has and receives the new mount, which switchTo puts in the
// place of the old one and after which it supersedes the store. On error the store goes on as if nothing had happened,
// and the new daemon was told why if it still listens.
func Offer(ctx context.Context, c *net.UnixConn, s *store.Store, switchTo func(mount int) error) error {
	o := offer{c: c, store: s, sent: map[uint64]bool{}}
	if err := o.send(schema.Reply{}.Encode(), -1); err != nil {
		return err
	}
	if err := o.entries(s.Records(false)); err != nil {
		return o.failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.Freeze(ctx); err != nil {
		return o.failed(err)
	}
	defer s.Thaw()
	o.until = time.Now().Add(frozenPatience)
	if err := o.rest(); err != nil {
		return o.failed(err)
	}
	mount, err := o.newMount()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(mount) }()
	if err := switchTo(mount); err != nil {
		_ = o.send(schema.Reply{Code: int32(errno(err)), Message: err.Error()}.Encode(), -1)
		return err
	}
	_ = o.send(schema.Reply{}.Encode(), -1) // it serves already, whether it listens or not
	return nil
}

func (o *offer) failed(err error) error {
	_ = o.send(schema.Parcel{Kind: control.ParcelKindFailed, Message: err.Error()}.Encode(), -1)
	return err
}

func errno(err error) syscall.Errno {
	var n syscall.Errno
	if errors.As(err, &n) {
		return n
	}
	return syscall.EIO
}

type offer struct {
	c     *net.UnixConn
	store *store.Store
	sent  map[uint64]bool // serial numbers of the entries whose files were sent
	until time.Time       // end of the frozen part, zero before it
}

func (o *offer) deadline() time.Time {
	if o.until.IsZero() {
		return time.Now().Add(patience)
	}
	return o.until
}

func (o *offer) send(message []byte, fd int) error {
	if err := o.c.SetDeadline(o.deadline()); err != nil {
		return err
	}
	return fdpass.Send(o.c, message, fd)
}

// entries sends records, and the files of those that were not sent yet.
func (o *offer) entries(records []schema.EntryRecord) error {
	for _, r := range records {
		if err := o.entry(r); err != nil {
			return fmt.Errorf("hand %s over: %w", r.ID, err)
		}
	}
	return nil
}

func (o *offer) entry(r schema.EntryRecord) error {
	var files []store.Passed
	if !o.sent[r.Serial] {
		var release func()
		var err error
		if files, release, err = o.store.Borrow(r); err != nil {
			return err
		}
		defer release()
		if len(files) == 0 && !r.Staging {
			return nil // evicted meanwhile
		}
		o.sent[r.Serial] = true
	}
	if err := o.send(schema.Parcel{Kind: control.ParcelKindEntry, Entry: r}.Encode(), -1); err != nil {
		return err
	}
	for _, f := range files {
		if err := o.send(schema.Parcel{Kind: control.ParcelKindFile, File: f.FileRecord}.Encode(), f.FD); err != nil {
			return err
		}
	}
	return nil
}

// rest sends what is new and what has changed, now that nothing changes any more.
func (o *offer) rest() error {
	if err := o.send(schema.Parcel{Kind: control.ParcelKindFrozen}.Encode(), -1); err != nil {
		return err
	}
	if err := o.entries(o.store.Records(true)); err != nil {
		return err
	}
	return o.send(schema.Parcel{Kind: control.ParcelKindEnd}.Encode(), -1)
}

// newMount receives the mount of the new daemon, which then has everything.
func (o *offer) newMount() (int, error) {
	if err := o.c.SetDeadline(o.deadline()); err != nil {
		return -1, err
	}
	message, fd, err := fdpass.Receive(o.c)
	if err != nil {
		return -1, fmt.Errorf("the new daemon is gone: %w", err)
	}
	r, err := schema.DecodeRequest(message)
	if err == nil && (r.Op != control.OpSwitch || fd < 0) {
		err = fmt.Errorf("%w: operation %d in a takeover", schema.ErrRequest, r.Op)
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
	}
	return fd, err
}
