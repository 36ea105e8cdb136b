package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

const mib = int64(1) << 20

// runEnv makes this test binary run as overmind-fs, and holdEnv as a client that maps the named file.
const (
	runEnv  = "OVERMIND_TEST_RUN"
	holdEnv = "OVERMIND_TEST_HOLD"
	// openEnv makes it a client that opens the named file, and closes it when its input ends.
	openEnv = "OVERMIND_TEST_OPEN"
	// walkEnv makes it a process that reads the named file over and over, until its input ends.
	walkEnv = "OVERMIND_TEST_WALK"
	// lookEnv makes it a client that reads the named entry again and again until its input ends, and fillEnv one that
	// takes the lock of "dying" in the named cache, stages it, and waits; lateEnv stages only when it is told to.
	lookEnv = "OVERMIND_TEST_LOOK"
	fillEnv = "OVERMIND_TEST_FILL"
	lateEnv = "OVERMIND_TEST_LATE"
)

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		main()
		os.Exit(exitOK)
	}
	if path := os.Getenv(holdEnv); path != "" {
		if err := holdMapping(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv(openEnv); path != "" {
		if err := holdOpen(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv(walkEnv); path != "" {
		if err := walk(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(lookEnv); dir != "" {
		if err := keepLooking(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	for env, late := range map[string]bool{fillEnv: false, lateEnv: true} {
		if root := os.Getenv(env); root != "" {
			if err := holdFill(root, late); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func holdOpen(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fmt.Println("mapped") // as startClient expects
	_, _ = io.Copy(io.Discard, os.Stdin)
	return unix.Close(fd)
}

// holdMapping maps a file and touches all of it, then again when its input ends.
func holdMapping(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	fmt.Println("mapped")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if !bytes.Equal(mem, fstest.Content(st.Size)) {
		return errors.New("the mapping has other bytes")
	}
	fmt.Println("same")
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command prepares a run of overmind-fs.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), runEnv+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// overmind runs overmind-fs and returns its exit code and what it printed.
func overmind(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// wantRun runs overmind-fs and checks the exit code and a part of what it printed.
func wantRun(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	got, out, errOut := overmind(t, args...)
	if got != code || !strings.Contains(out+errOut, want) {
		t.Errorf("%s: exit %d, want %d with %q\n%s%s", strings.Join(args, " "), got, code, want, out, errOut)
	}
	return out
}

func needFUSE(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("FUSE needs root or fusermount3")
		}
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("FUSE cannot be used: %v", err)
	}
	_ = f.Close()
}

// daemon is a running mount command.
type daemon struct {
	cmd    *exec.Cmd
	dir    string
	stderr *bytes.Buffer
	ended  chan error
}

// startDaemon mounts dir and waits until the mount answers.
func startDaemon(t *testing.T, dir string, args ...string) *daemon {
	t.Helper()
	return startDaemonIn(t, nil, dir, args...)
}

// startDaemonIn does so in a cgroup, if there is one.
func startDaemonIn(t *testing.T, group *fstest.Cgroup, dir string, args ...string) *daemon {
	t.Helper()
	if group == nil {
		return startPrepared(t, func(*exec.Cmd) error { return nil }, dir, args...)
	}
	return startPrepared(t, group.Contain, dir, args...)
}

// startPrepared does so with a command that was changed.
func startPrepared(t *testing.T, change func(*exec.Cmd) error, dir string, args ...string) *daemon {
	t.Helper()
	needFUSE(t)
	d := &daemon{dir: dir, stderr: &bytes.Buffer{}, ended: make(chan error, 1)}
	// Nothing goes because the machine that runs the tests is short of memory, unless a test is about that.
	d.cmd = command(append([]string{"mount", "--max-bytes", "64MiB", "--pressure", "off", dir}, args...)...)
	d.cmd.Stderr = d.stderr
	must(t, change(d.cmd))
	must(t, d.cmd.Start())
	go func() { d.ended <- d.cmd.Wait() }()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		unmountForGood(t, dir)
	})
	waitAlive(t, dir)
	return d
}

func waitAlive(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if h, err := overmindfs.ProbeMount(dir); err == nil && h == overmindfs.AliveMount {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the mount does not answer")
		}
	}
}

func unmountForGood(t *testing.T, dir string) {
	t.Helper()
	for {
		kind, err := overmindfs.MountedType(dir)
		must(t, err)
		if kind == "" {
			return
		}
		must(t, overmindfs.Detach(dir, true))
	}
}

// wantExit waits for the end of the daemon: a moment, or five seconds at most, where the machine has nothing else to do.
func (d *daemon) wantExit(t *testing.T, code int) {
	t.Helper()
	select {
	case <-d.ended:
		if got := d.cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("exit code %d, want %d\n%s", got, code, d.stderr)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the daemon does not end\n%s", d.stderr)
	}
	if kind, _ := overmindfs.MountedType(d.dir); kind != "" {
		t.Errorf("%s is still mounted", d.dir)
	}
}

// client is a process that maps an arena.
type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bytes.Buffer
}

func startClient(t *testing.T, path string) *client { return startClientAs(t, holdEnv, path) }

func startClientAs(t *testing.T, env, path string) *client {
	t.Helper()
	c := &client{cmd: exec.Command("/proc/self/exe"), out: &bytes.Buffer{}}
	c.cmd.Env = append(os.Environ(), env+"="+path, "GORACE=atexit_sleep_ms=0")
	in, err := c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	must(t, c.cmd.Start())
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	c.in = in
	line := make([]byte, len("mapped\n"))
	_, err = io.ReadFull(out, line)
	must(t, err)
	if string(line) != "mapped\n" {
		t.Fatalf("client: %s", line)
	}
	go func() { _, _ = io.Copy(c.out, out) }()
	return c
}

// wantSame checks that the mapping is as it was.
func (c *client) wantSame(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("client: %v %s", err, c.out)
	}
}

func fill(t *testing.T, root, id string) fstest.Fill {
	t.Helper()
	f := fstest.Fill{Root: root, ID: id, Size: 3 * mib, Mapped: true}
	must(t, f.Run())
	return f
}

func logFile(t *testing.T) string { return filepath.Join(t.TempDir(), "log") }
