package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBackground(t *testing.T) {
	needFUSE(t)
	dir, log := t.TempDir(), logFile(t)
	t.Cleanup(func() { unmountForGood(t, dir) })
	wantRun(t, exitOK, "mounted "+dir, "mount", "--background", dir, "--log-file", log, "--log-format", "json")
	s, err := readStatus(dir) // at once: it returned because the mount answers
	must(t, err)
	if sid, err := unix.Getsid(s.PID); err != nil || sid != s.PID {
		t.Errorf("session %d (%v) of daemon %d", sid, err, s.PID)
	}
	wantRun(t, exitFailure, "mounted there already", "mount", "-b", dir, "--log-file", log)
	wantRun(t, exitOK, "", "umount", dir)
	text, err := os.ReadFile(log)
	must(t, err)
	if !strings.Contains(string(text), `"msg":"mounted"`) || !strings.Contains(string(text), `"msg":"unmounted`) {
		t.Errorf("log:\n%s", text)
	}
}

func TestBackgroundReportsErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	code, out, errOut := overmind(t, "mount", "-b", missing, "--log-file", logFile(t))
	if code != exitFailure || out != "" || !strings.Contains(errOut, "no such folder") {
		t.Errorf("exit %d, %q, %q", code, out, errOut)
	}
}

func TestDefaultLogFile(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	got, err := defaultLogFile("/tmp/../tmp/x")
	must(t, err)
	if want := filepath.Join(state, "overmind-fs", "tmp-x.log"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	t.Setenv("XDG_STATE_HOME", got)
	must(t, os.WriteFile(got, nil, 0o600))
	wantRun(t, exitFailure, "--log-file FILE", "mount", "--background", t.TempDir())
}
