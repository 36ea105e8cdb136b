package schema

import (
	"encoding/binary"
	"errors"
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"

	"overmind-fs/schema/control"
)

// ControlVersion is the version of the messages of the control socket.
const ControlVersion = 1

// A frame is a length of prefixSize bytes and at most MaxFrame bytes of FlatBuffer.
const (
	MaxFrame   = 4096
	prefixSize = 4
	// MaxMessage is the size of the largest frame with its length.
	MaxMessage = prefixSize + MaxFrame
)

var (
	// ErrFrame is returned when a message is not a frame: longer than allowed, or not as long as it says.
	ErrFrame = errors.New("malformed frame")
	// ErrRequest is returned when a frame holds no readable request, or one that means nothing.
	ErrRequest = errors.New("malformed request")
	// ErrVersion is returned when a request is of another version.
	ErrVersion = errors.New("unknown version of the control protocol")
)

// Request asks for an arena, or is part of a takeover; then only Op counts.
type Request struct {
	Op       control.Op
	ID, Name string
	Inode    uint64
}

// Staged says whether the arena of a staging is asked for, to be written.
func (r Request) Staged() bool { return r.Op == control.OpOpenStaged }

// Reply is the answer. Code 0 comes with a file descriptor.
type Reply struct {
	Code    int32
	Message string
}

// DecodeRequest reads a message. The result does not refer to it, and its names are valid. The error wraps ErrFrame,
// ErrRequest or ErrVersion.
func DecodeRequest(message []byte) (r Request, err error) {
	err = decodeFrame(message, func() error {
		t := control.GetSizePrefixedRootAsRequest(message, 0)
		if v := t.Version(); v != ControlVersion {
			return fmt.Errorf("%w: %d, this daemon has %d", ErrVersion, v, ControlVersion)
		}
		r = Request{Op: t.Op(), ID: string(t.Id()), Name: string(t.Name()), Inode: t.Inode()}
		return r.check()
	})
	if err != nil {
		return Request{}, err
	}
	return r, nil
}

func (r Request) check() error {
	switch r.Op {
	case control.OpTakeOver, control.OpSwitch:
		return nil
	case control.OpOpenPublished, control.OpOpenStaged:
	default:
		return fmt.Errorf("%w: operation %d", ErrRequest, r.Op)
	}
	switch {
	case !ValidID(r.ID):
		return fmt.Errorf("%w: id %q", ErrRequest, r.ID)
	case !ValidArenaName(r.Name):
		return fmt.Errorf("%w: name %q", ErrRequest, r.Name)
	}
	return nil
}

// DecodeReply reads a message, as a client does. The error is one of DecodeRequest's.
func DecodeReply(message []byte) (r Reply, err error) {
	err = decodeFrame(message, func() error {
		t := control.GetSizePrefixedRootAsReply(message, 0)
		if v := t.Version(); v != ControlVersion {
			return fmt.Errorf("%w: %d", ErrVersion, v)
		}
		r = Reply{Code: t.Code(), Message: string(t.Message())}
		return nil
	})
	return r, err
}

// decodeFrame checks the length and the identifier, and turns what the accessors panic with into an error: they index
// the message with offsets from the message.
func decodeFrame(message []byte, read func() error) (err error) {
	if len(message) < prefixSize || len(message) > MaxMessage {
		return fmt.Errorf("%w: %d bytes", ErrFrame, len(message))
	}
	if n := binary.LittleEndian.Uint32(message); uint64(n) != uint64(len(message)-prefixSize) {
		return fmt.Errorf("%w: says %d bytes, has %d", ErrFrame, n, len(message)-prefixSize)
	}
	if len(message) < prefixSize+minBytes {
		return fmt.Errorf("%w: %d bytes", ErrRequest, len(message))
	}
	if !control.SizePrefixedRequestBufferHasIdentifier(message) {
		return fmt.Errorf("%w: file identifier %q, want %q", ErrRequest, message[8:12], control.RequestIdentifier)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrRequest, r)
		}
	}()
	return read()
}

// maxReplyText bounds the message of a reply, so that every reply fits into a frame.
const maxReplyText = 1024

// Encode makes the message of a reply.
func (r Reply) Encode() []byte {
	b := flatbuffers.NewBuilder(256)
	text := b.CreateString(r.Message[:min(len(r.Message), maxReplyText)])
	control.ReplyStart(b)
	control.ReplyAddVersion(b, ControlVersion)
	control.ReplyAddCode(b, r.Code)
	control.ReplyAddMessage(b, text)
	b.FinishSizePrefixedWithFileIdentifier(control.ReplyEnd(b), []byte(control.RequestIdentifier))
	return b.FinishedBytes()
}

// Encode makes the message of a request, as a client does.
func (r Request) Encode() []byte {
	b := flatbuffers.NewBuilder(256)
	id, name := b.CreateString(r.ID), b.CreateString(r.Name)
	control.RequestStart(b)
	control.RequestAddVersion(b, ControlVersion)
	control.RequestAddOp(b, r.Op)
	control.RequestAddId(b, id)
	control.RequestAddName(b, name)
	control.RequestAddInode(b, r.Inode)
	control.FinishSizePrefixedRequestBuffer(b, control.RequestEnd(b))
	return b.FinishedBytes()
}
