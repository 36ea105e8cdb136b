package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// mountAsNobody is the message of a mount without root.
func mountAsNobody(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir, err := os.MkdirTemp("", "overmind-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	must(t, os.Chown(dir, 12345, 12345))
	cmd := command("mount", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("it was mounted")
	}
	return string(out)
}

func TestUnprivilegedWithoutTheDevice(t *testing.T) {
	info, err := os.Stat("/dev/fuse")
	if err != nil || info.Mode().Perm()&0o006 != 0 {
		t.Skip("/dev/fuse is open to all, or missing")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip(err)
	}
	if said := mountAsNobody(t); !strings.Contains(said, "/dev/fuse: permission denied") {
		t.Error(said)
	}
}

// Without root and without the helper, the message says what is missing.
func TestUnprivilegedWithoutFusermount(t *testing.T) {
	for _, helper := range []string{"/bin/fusermount3", "/bin/fusermount"} {
		if _, err := os.Stat(helper); err == nil {
			t.Skipf("%s is installed", helper)
		}
	}
	if said := mountAsNobody(t); !strings.Contains(said, "install the package fuse3, or run as root") {
		t.Error(said)
	}
}
