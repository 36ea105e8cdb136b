package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

// takePatience is more than the longest pause of the other side, the wait for the end of commits and allocations.
const takePatience = patience + 10*time.Second

// ErrRefused is returned when the running daemon refuses, with its reason.
var ErrRefused = errors.New("the running daemon goes on")

// Takeover is one under way. Until Switch has succeeded the running daemon goes on when it is closed.
type Takeover struct {
	PID  int // of the running daemon
	c    *net.UnixConn
	into *store.Store
	log  *slog.Logger
	have map[uint64]*parcel // by serial number of the entry
	last *parcel            // the entry whose files come
}

// parcel is an entry on its way.
type parcel struct {
	record   schema.EntryRecord
	files    []store.Passed
	adoption *store.Adoption // once all files are there
	there    bool            // also when the other side was frozen
}

// Take asks the daemon behind a control socket for everything it has, which the store into can then adopt. It must be a
// daemon of root or of this user, in the same mount namespace.
func Take(socket string, into *store.Store, log *slog.Logger) (*Takeover, error) {
	c, pid, err := fdpass.Dial(socket)
	if err != nil {
		return nil, fmt.Errorf("the running daemon cannot be reached: %w", err)
	}
	t := &Takeover{PID: pid, c: c, into: into, log: log, have: map[uint64]*parcel{}}
	if err := sameNamespace(pid); err != nil {
		t.Close()
		return nil, err
	}
	if err := t.ask(schema.Request{Op: control.OpTakeOver}, -1); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// sameNamespace refuses what could only fail half-way: the running daemon mounts what we made.
func sameNamespace(pid int) error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return fmt.Errorf("the mount namespace of the running daemon is unknown: %w", err)
	}
	if ours != theirs {
		return fmt.Errorf("the running daemon (pid %d) is in another mount namespace", pid)
	}
	return nil
}

func (t *Takeover) ask(r schema.Request, fd int) error {
	if err := t.c.SetDeadline(time.Now().Add(takePatience)); err != nil {
		return err
	}
	if err := fdpass.Send(t.c, r.Encode(), fd); err != nil {
		return t.refusal(err)
	}
	message, got, err := fdpass.Receive(t.c)
	if err != nil {
		return fmt.Errorf("the running daemon does not answer: %w", err)
	}
	closeFD(got)
	return reply(message)
}

// refusal prefers what the other side said before it closed the connection.
func (t *Takeover) refusal(err error) error {
	if message, fd, e := fdpass.Receive(t.c); e == nil {
		closeFD(fd)
		if e := reply(message); e != nil {
			return e
		}
	}
	return err
}

func reply(message []byte) error {
	r, err := schema.DecodeReply(message)
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return fmt.Errorf("%w: %s", ErrRefused, r.Message)
	}
	return nil
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// Close ends the connection and gives up what was not collected.
func (t *Takeover) Close() {
	_ = t.c.Close()
	for _, p := range t.have {
		p.close()
	}
	clear(t.have)
}

func (p *parcel) close() {
	if p.adoption != nil {
		p.adoption.Close()
	}
	for _, f := range p.files {
		_ = unix.Close(f.FD)
	}
	p.files = nil
}

// Collect receives and checks everything, for store.Adopt. What does not check out is left out, with a warning. When it
// returns, the other side holds all changes up, for two seconds at most. When ctx ends first, the other side goes on.
func (t *Takeover) Collect(ctx context.Context) ([]*store.Adoption, error) {
	stop := context.AfterFunc(ctx, func() { _ = t.c.Close() })
	defer stop()
	all, err := t.collect()
	if ctx.Err() != nil {
		for _, a := range all {
			a.Close()
		}
		return nil, fmt.Errorf("%w: %w", ErrRefused, ctx.Err())
	}
	return all, err
}

func (t *Takeover) collect() ([]*store.Adoption, error) {
	for {
		if err := t.c.SetDeadline(time.Now().Add(takePatience)); err != nil {
			return nil, err
		}
		message, fd, err := fdpass.Receive(t.c)
		if err != nil {
			return nil, fmt.Errorf("the running daemon stopped in the middle: %w", err)
		}
		p, err := schema.DecodeParcel(message)
		if err != nil {
			closeFD(fd)
			return nil, err
		}
		if (p.Kind == control.ParcelKindFile) != (fd >= 0) {
			closeFD(fd)
			return nil, fmt.Errorf("%w: parcel %d, descriptor %d", schema.ErrRequest, p.Kind, fd)
		}
		switch p.Kind {
		case control.ParcelKindEntry:
			t.entry(p.Entry)
		case control.ParcelKindFile:
			if t.last == nil || t.last.record.Serial != p.File.Entry || t.last.adoption != nil {
				closeFD(fd)
				return nil, fmt.Errorf("%w: file %s of no entry", schema.ErrRequest, p.File.Name)
			}
			t.last.files = append(t.last.files, store.Passed{FileRecord: p.File, FD: fd})
		case control.ParcelKindFrozen:
			t.check()
			for _, p := range t.have {
				p.there = false
			}
		case control.ParcelKindFailed:
			return nil, fmt.Errorf("%w: %s", ErrRefused, p.Message)
		case control.ParcelKindEnd:
			t.check()
			return t.adoptions(), nil
		}
	}
}

// entry begins an entry, or notes what has changed in one that is here.
func (t *Takeover) entry(r schema.EntryRecord) {
	t.check()
	if p := t.have[r.Serial]; p != nil {
		p.record, p.there = r, true
		if p.adoption != nil {
			p.adoption.EntryRecord = r
		}
		return
	}
	t.last = &parcel{record: r, there: true}
	t.have[r.Serial] = t.last
}

// check checks the entry whose files have all come.
func (t *Takeover) check() {
	p := t.last
	t.last = nil
	if p == nil {
		return
	}
	var err error
	files := p.files
	p.files = nil
	if p.adoption, err = t.into.NewAdoption(p.record, files); err != nil {
		t.log.Warn("an entry of the running daemon is not taken over", "entry", p.record.ID, "error", err)
	}
}

func (t *Takeover) adoptions() []*store.Adoption {
	var out []*store.Adoption
	for serial, p := range t.have {
		if p.adoption != nil && p.there {
			out = append(out, p.adoption)
			delete(t.have, serial)
		}
	}
	return out
}

// Switch gives the running daemon the new mount, which must be served and have everything. When it returns nil, the new
// mount is in the place of the old one. An error that wraps ErrRefused is the running daemon's.
func (t *Takeover) Switch(mount int) error { return t.ask(schema.Request{Op: control.OpSwitch}, mount) }
