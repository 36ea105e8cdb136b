package fdpass

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

// Whatever a message is, it gets an answer, and asks for nothing but the arena of an entry.
func FuzzAnswer(f *testing.F) {
	s := &Server{opts: Options{
		Open: func(_ store.Caller, r schema.Request) (int, error) {
			if !schema.ValidID(r.ID) || !schema.ValidArenaName(r.Name) {
				panic("asked for " + r.ID + "/" + r.Name)
			}
			return 7, nil
		},
		TakeOver: func(store.Caller, *net.UnixConn) {},
		Errno:    func(error) syscall.Errno { return syscall.EIO },
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	}}
	for _, r := range []schema.Request{request, {Op: control.OpTakeOver}, {Op: control.OpSwitch}} {
		f.Add(r.Encode())
	}
	f.Add([]byte("\xff\xff\xff\xff\x08\x00\x00\x00OVMC")) // a frame of 4 GiB
	f.Add(request.Encode()[:20])
	f.Fuzz(func(t *testing.T, message []byte) {
		sent := bytes.Clone(message)
		fd, err := s.answer(nil, store.Caller{UID: 4242}, message)
		if err == nil && fd != 7 || err != nil && fd != -1 {
			t.Fatalf("%d with %v", fd, err)
		}
		if err != nil && strings.HasPrefix(err.Error(), "panic") {
			t.Fatal(err)
		}
		if errors.Is(err, errTakenOver) {
			t.Fatal("another user may take over")
		}
		if !bytes.Equal(sent, message) {
			t.Fatal("the message was changed")
		}
	})
}
