package fs_test

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fdpass"
	"overmind-fs/fs/fstest"
	"overmind-fs/schema"
	"overmind-fs/schema/control"
)

// The process that serves a mount must not map its files, and locks and uids need other processes anyway. So this
// binary starts itself again: with childEnv set it runs one of the commands below instead of the tests. A command
// prints lines; "hold" waits until standard input ends.
const childEnv = "OVERMIND_TEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := childCommands[name](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func hold() { _, _ = io.Copy(io.Discard, os.Stdin) }

func mapFile(path string, prot, flags, openFlags int) ([]byte, int, error) {
	fd, err := unix.Open(path, openFlags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("open: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, -1, err
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), prot, flags)
	return mem, fd, err
}

func childFill(a []string) fstest.Fill {
	size, err := strconv.ParseInt(a[2], 10, 64)
	if err != nil {
		panic(err)
	}
	f := fstest.Fill{Root: a[0], ID: a[1], Size: size, Mapped: true}
	if len(a) > 3 {
		f.From = a[3]
	}
	return f
}

var childCommands = map[string]func([]string) error{
	// PATH: hash of a private mapping of the file, then again after the parent says so (end of input)
	"map": func(a []string) error {
		mem, fd, err := mapFile(a[0], unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, unix.O_RDONLY)
		if err != nil {
			return err
		}
		fmt.Printf("%x\n", sha256.Sum256(mem))
		hold()
		fmt.Printf("%x\n", sha256.Sum256(mem))
		return unix.Close(fd)
	},
	// ROOT ID SIZE
	"fill": func(a []string) error { return errors.Join(openLock(a[0], a[1]), childFill(a).Run()) },
	// ROOT ID SIZE [FROM]: takes the lock, stages, and holds
	"stage": func(a []string) error {
		fd, err := unix.Open(a[0]+"/locks/"+a[1], unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			return err
		}
		if err := childFill(a).Stage(); err != nil {
			return err
		}
		fmt.Println("staged")
		hold()
		return nil
	},
	// ROOT ID SIZE: stages and keeps the arena mapped for writing, with its handle closed
	"keepmapped": func(a []string) error {
		f := childFill(a)
		if err := f.Stage(); err != nil {
			return err
		}
		mem, fd, err := mapFile(fstest.Arena(f.Staging()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, unix.O_RDWR)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
		fmt.Println("mapped")
		hold()
		return unix.Munmap(mem)
	},
	// PATH: tries to get the lock without waiting
	"trylock": func(a []string) error {
		fd, err := unix.Open(a[0], unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			fmt.Println("no")
			return nil
		}
		fmt.Println("yes")
		hold()
		return nil
	},
	// SOCKET STAGED ID INODE: the errno of a request for the memory of an arena
	"passed": func(a []string) error {
		inode, err := strconv.ParseUint(a[3], 10, 64)
		if err != nil {
			return err
		}
		_, err = passedBy(a[0], a[1] == "true", a[2], inode)
		var errno syscall.Errno
		if err != nil && !errors.As(err, &errno) {
			return err
		}
		fmt.Println(errnoName(errno))
		return nil
	},
	// SOCKET: the errno of a request to take over
	"takeover": func(a []string) error {
		c, _, err := fdpass.Dial(a[0])
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := fdpass.Send(c, schema.Request{Op: control.OpTakeOver}.Encode(), -1); err != nil {
			return err
		}
		message, _, err := fdpass.Receive(c)
		if err != nil {
			return err
		}
		r, err := schema.DecodeReply(message)
		fmt.Println(errnoName(syscall.Errno(r.Code)))
		return err
	},
	// PATH: keeps the file open
	"open": func(a []string) error {
		fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fmt.Println("open")
		hold()
		return unix.Close(fd)
	},
	// PATH...: the errno of stat for each path, again for every line of input
	"stat": func(a []string) error {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			var st unix.Stat_t
			fmt.Println(errnoName(unix.Stat(a[0], &st)))
		}
		return nil
	},
	// VERB PATH: the errno of one operation
	"try": func(a []string) error {
		var err error
		switch a[0] {
		case "mkdir":
			err = unix.Mkdir(a[1], 0o755)
		case "rmdir":
			err = unix.Rmdir(a[1])
		case "read":
			_, err = os.ReadFile(a[1])
		case "rename":
			err = unix.Rename(a[1], a[2])
		case "pin":
			err = unix.Setxattr(a[1], "user.overmind.pinned", []byte("1"), 0)
		}
		fmt.Println(errnoName(err))
		return nil
	},
}

func errnoName(err error) string {
	if err == nil || err == syscall.Errno(0) {
		return "ok"
	}
	var errno syscall.Errno
	if e, ok := err.(*os.PathError); ok {
		err = e.Err
	}
	errno, _ = err.(syscall.Errno)
	return unix.ErrnoName(errno)
}

// child is a running command.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

func start(t *testing.T, uid uint32, name string, args ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	// The race detector sleeps for a second at every exit otherwise.
	cmd.Env = append(os.Environ(), childEnv+"="+name, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in, lines: bufio.NewReader(out)}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return c
}

// line returns the next line of output.
func (c *child) line() string {
	c.t.Helper()
	s, err := c.lines.ReadString('\n')
	if err != nil {
		c.t.Fatalf("child ended early: %v %q", err, s)
	}
	return strings.TrimSpace(s)
}

// finish lets a holding child go on and waits until it has ended.
func (c *child) finish() string {
	c.t.Helper()
	_ = c.in.Close()
	rest, _ := io.ReadAll(c.lines)
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("child: %v: %s", err, rest)
	}
	return strings.TrimSpace(string(rest))
}

func (c *child) kill() {
	c.t.Helper()
	must(c.t, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
}
