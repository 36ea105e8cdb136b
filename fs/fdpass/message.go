package fdpass

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"overmind-fs/schema"
)

// ErrPeer is returned when the socket is served by a user who may not be trusted.
var ErrPeer = errors.New("served by another user")

// Dial connects to the control socket of a daemon of root or of this user, and returns its process.
func Dial(path string) (*net.UnixConn, int, error) {
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, 0, err
	}
	who, err := peer(c)
	if err == nil && who.UID != 0 && int(who.UID) != os.Geteuid() {
		err = fmt.Errorf("%s: %w: uid %d", path, ErrPeer, who.UID)
	}
	if err != nil {
		_ = c.Close()
		return nil, 0, err
	}
	return c, who.PID, nil
}

// Send sends a message, with a descriptor beside it unless that is negative.
func Send(c *net.UnixConn, message []byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err := c.WriteMsgUnix(message, rights, nil)
	return err
}

// Receive receives a message and the descriptor that came with it, or else -1; the caller closes it. The error is io.EOF
// when the other side has closed.
func Receive(c *net.UnixConn) (message []byte, fd int, err error) {
	message = make([]byte, schema.MaxMessage+1)
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := c.ReadMsgUnix(message, oob)
	if err != nil {
		return nil, -1, err
	}
	fds, err := rights(oob[:oobn])
	if err == nil && len(fds) == 0 && n == 0 {
		return nil, -1, io.EOF
	}
	if err == nil && (len(fds) > 1 || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0) {
		err = fmt.Errorf("%w: cut, or with %d descriptors", schema.ErrFrame, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, -1, err
	}
	if len(fds) == 0 {
		return message[:n], -1, nil
	}
	return message[:n], fds[0], nil
}

func rights(oob []byte) ([]int, error) {
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, m := range controls {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return out, err
		}
		out = append(out, fds...)
	}
	return out, nil
}
