package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

func TestFrame(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	status := overmindfs.Status{Mount: "/mnt", PID: 12, Version: "v1", Hits: 30, Entries: 3}
	status.Limits.MaxBytes, status.Bytes.Cached, status.Bytes.Draining = 100<<20, 80<<20, 10<<20
	before := &sample{at: at.Add(-2 * time.Second), status: status, entries: map[string]attributes{
		"idle": {hits: 5, lastUse: at}, "busy": {hits: 10},
	}}
	now := &sample{at: at, status: status, entries: map[string]attributes{
		"idle":   {hits: 5, lastUse: at},
		"leased": {leases: 1, leasePIDs: []int{77}, hits: 0},
		"busy":   {hits: 13, bytes: 80 << 20, pinned: true, lastUse: at.Add(-time.Minute)},
	}}
	now.status.Hits = 33
	lines := frame(before, now)
	for i, want := range []string{
		`/mnt  pid 12, up 0s, version v1$`,
		`^\[###########################---\] 90 MiB of 100 MiB: 80 MiB cached .* 10 MiB draining$`,
		`^3 entries, 0 leases, 33 hits \(1.5/s\), `,
		`^$`,
		`^HITS/S +HITS +SIZE +USED +PINNED +ID +LEASES$`,
		`^1.5 +13 +80 MiB +1 minute ago +yes +busy +0$`,
		`^0.0 +0 +0 B .* no +leased +1 \(pid 77\)$`,
		`^0.0 +5 +0 B +now +no +idle +0$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i].text) {
			t.Errorf("line %d: %q, want %s", i, lines[i].text, want)
		}
	}
	if lines[1].style != styleTight {
		t.Error("90% is not tight")
	}
	if text := frame(nil, now)[5].text; !strings.HasPrefix(text, unknown) {
		t.Errorf("a rate from one look: %q", text)
	}
	now.entries["busy"] = attributes{hits: 2} // another entry of that name
	if text := frame(before, now)[5].text; !strings.HasPrefix(text, "1.0") {
		t.Errorf("a counter that starts anew: %q", text)
	}
}

func TestTopWithoutTerminalPrintsOnce(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	fill(t, d.dir, "tiny-a")
	out := wantRun(t, exitOK, "tiny-a", "top", "--root", d.dir)
	if strings.Contains(out, "\x1b") || strings.Count(out, "HITS/S") != 1 {
		t.Errorf("%q", out)
	}
}

// terminal is a pseudo terminal with top on it.
type terminal struct {
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	before unix.Termios

	mu  sync.Mutex
	out bytes.Buffer
}

func startTop(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminal: %v", err)
	}
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 6, Col: 60}))
	x := &terminal{master: master, slave: slave, cmd: command(append([]string{"top"}, args...)...)}
	state, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	must(t, err)
	x.before = *state
	x.cmd.Env = append(append(x.cmd.Env, "TERM=xterm"), env...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = slave, slave, slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, x.cmd.Start())
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		_ = slave.Close()
		_ = master.Close()
	})
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			x.mu.Lock()
			x.out.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

// frame is the last one that is complete.
func (x *terminal) frame() string {
	text := x.text()
	at := strings.LastIndex(text, clearBelow)
	if at < 0 {
		return ""
	}
	return text[max(strings.LastIndex(text[:at], home), 0):at]
}

// waitFor waits until a frame shows all of what.
func (x *terminal) waitFor(t *testing.T, what ...string) {
	t.Helper()
	wait(t, x.frame, what...)
}

func wait(t *testing.T, shown func() string, what ...string) {
	t.Helper()
	missing := func(w string) bool { return !strings.Contains(shown(), w) }
	for deadline := time.Now().Add(20 * time.Second); slices.ContainsFunc(what, missing); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not all of %q in %q", what, shown())
		}
	}
}

// wantEnd checks the exit code, and that the terminal is as it was.
func (x *terminal) wantEnd(t *testing.T, code int) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- x.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatalf("top does not end: %q", x.frame())
	}
	if got := x.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d: %q", got, code, x.frame())
	}
	wait(t, x.text, leaveScreen)
	state, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	must(t, err)
	if *state != x.before {
		t.Error("the terminal is not as it was")
	}
}

func TestTopLive(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	fill(t, d.dir, "tiny-a")
	args := []string{"--root", d.dir, "--interval", "100ms"}

	x := startTop(t, []string{"NO_COLOR="}, args...)
	x.waitFor(t, "tiny-a", "(0.0/s)", "\x1b[32m[#-") // a second look, in green
	if !strings.HasPrefix(x.text(), enterScreen) {
		t.Errorf("starts with %q", x.text()[:20])
	}
	fill(t, d.dir, "tiny-b")
	x.waitFor(t, "2 entries")
	if f := x.frame(); strings.Count(f, "\r\n") != 5 || strings.Contains(f, "tiny-a") == strings.Contains(f, "tiny-b") {
		t.Errorf("not what fits on six lines: %q", f)
	}
	must(t, unix.IoctlSetWinsize(int(x.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}))
	x.waitFor(t, "tiny-a", "tiny-b", "0 refused")
	_, err := x.master.WriteString("q")
	must(t, err)
	x.wantEnd(t, exitOK)

	x = startTop(t, nil, "--root", d.dir, "--interval", "1h")
	x.waitFor(t, "2 entries")
	must(t, unix.IoctlSetWinsize(int(x.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}))
	x.waitFor(t, "tiny-a", "tiny-b") // drawn anew at once
	_, err = x.master.WriteString("Q")
	must(t, err)
	x.wantEnd(t, exitOK)

	x = startTop(t, []string{"NO_COLOR=1"}, args...)
	x.waitFor(t, "2 entries")
	if regexp.MustCompile(`\x1b\[[0-9;]*m`).MatchString(x.text()) {
		t.Errorf("colours in spite of NO_COLOR: %q", x.frame())
	}
	_, err = x.master.WriteString("\x03") // Ctrl-C
	must(t, err)
	x.wantEnd(t, exitOK)

	x = startTop(t, nil, args...)
	x.waitFor(t, "2 entries")
	must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	x.wantEnd(t, exitOK)

	x = startTop(t, nil, args...)
	x.waitFor(t, "2 entries")
	must(t, d.cmd.Process.Kill())
	x.wantEnd(t, exitNoDaemon)
	wait(t, x.text, "overmind-fs mount "+d.dir)
}
