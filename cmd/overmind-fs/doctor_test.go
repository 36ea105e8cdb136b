package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"overmind-fs/cmd/overmind-fs/doctor"
	overmindfs "overmind-fs/fs"
)

// diagnosis runs doctor for a cache and returns what it found about a mount.
func diagnosis(t *testing.T, root, where string) (code int, found string) {
	t.Helper()
	code, out, errOut := overmind(t, "doctor", "--json", "--root", root)
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s%s", err, out, errOut)
	}
	if (code == exitFailure) != (r.Problems() > 0) {
		t.Errorf("exit code %d with %d problems", code, r.Problems())
	}
	for _, f := range r.Findings {
		if f.Where == where {
			found += string(f.Severity) + " " + f.Check + ": " + f.What + "\n"
		}
	}
	return code, found
}

func wantDiagnosis(t *testing.T, dir, want string) {
	t.Helper()
	if code, found := diagnosis(t, dir, dir); code != exitFailure || !strings.Contains(found, want) {
		t.Errorf("exit %d, found %q, want %q", code, found, want)
	}
}

func TestDoctorSaysHowArenasAreReached(t *testing.T) {
	for way, options := range map[string][]string{
		"fd": {"--passthrough", "off"}, "read": {"--passthrough", "off", "--fd-passing", "off"},
	} {
		d := startDaemon(t, t.TempDir(), options...)
		wantRun(t, exitFailure, d.dir+": programs reach the arenas by "+way+"\n", "doctor", "--root", d.dir)
	}
	plain := t.TempDir()
	must(t, os.WriteFile(filepath.Join(plain, "CACHEDIR.TAG"), nil, 0o600))
	if _, out, _ := overmind(t, "doctor", "--root", plain); !strings.Contains(out, plain+": programs reach the arenas by directory\n") {
		t.Errorf("doctor says %s", out)
	}
	d := startDaemon(t, t.TempDir())
	st, err := overmindfs.ReadStatus(d.dir)
	must(t, err)
	if !st.Passthrough.Active {
		t.Skip("no passthrough:", st.Passthrough.Reason)
	}
	if _, out, _ := overmind(t, "doctor", "--root", d.dir); !strings.Contains(out, d.dir+": programs reach the arenas by passthrough\n") {
		t.Errorf("doctor says %s", out)
	}
}

func TestDoctorOnMount(t *testing.T) {
	d := startDaemon(t, t.TempDir(), "--passthrough", "off")
	fill(t, d.dir, "a")
	wantDiagnosis(t, d.dir, "warning passthrough: no passthrough: switched off\n")
	if _, found := diagnosis(t, d.dir, d.dir); strings.Contains(found, " mount:") || strings.Contains(found, "entries:") ||
		strings.Contains(found, "versions:") || strings.Contains(found, "socket:") || strings.Contains(found, "budget:") {
		t.Errorf("found what is not there: %s", found)
	}
	wantRun(t, exitFailure, "mend   overmind-fs ", "doctor", "--root", d.dir)

	path, err := os.Readlink(filepath.Join(d.dir, "control"))
	must(t, err)
	must(t, os.Chmod(path, 0o666))
	must(t, os.Chmod(filepath.Dir(path), 0o777))
	wantDiagnosis(t, d.dir, "is world-writable\n")
	wantDiagnosis(t, d.dir, "error control socket: others can write into")

	// Of another cache it is enough to know that its daemon lives.
	other := startDaemon(t, t.TempDir())
	if _, found := diagnosis(t, other.dir, d.dir); found != "" {
		t.Errorf("looked too closely: %s", found)
	}
	must(t, d.cmd.Process.Kill())
	<-d.ended
	wantDiagnosis(t, d.dir, "error mount: the daemon of this mount is dead\n")
	wantRun(t, exitFailure, d.dir+": the daemon of this mount is dead", "doctor", "--root", other.dir)
	wantRun(t, exitOK, "", "umount", d.dir)
	wantDiagnosis(t, d.dir, "warning mount: nothing is mounted on this empty folder\n")
	wantDiagnosis(t, filepath.Join(d.dir, "missing"), "error mount: there is no such folder\n")
	wantDiagnosis(t, "/nope/missing", "error mount: there is no such folder\n")
}

// A user who may not use the cache hears it. (Without --root doctor would look into the mounts of tests that run beside.)
func TestDoctorOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	d := startDaemon(t, t.TempDir())
	cmd := command("doctor", "--root", d.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.Output()
	if err == nil || !strings.Contains(string(out), "error    "+d.dir+": this user may not use it") {
		t.Errorf("%v\n%s", err, out)
	}
}

// On a mount for all, other users' entries cannot be read, and are no reason to say nothing.
func TestDoctorOfAUserAmongOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	d := startDaemon(t, dir, "--allow-other", "--passthrough", "off")
	fill(t, d.dir, "a")
	cmd := command("doctor", "--root", d.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, _ := cmd.CombinedOutput()
	if !strings.Contains(string(out), d.dir+": no passthrough: switched off") {
		t.Error(string(out))
	}
	pin := command("pin", "a", "--root", d.dir)
	pin.SysProcAttr = cmd.SysProcAttr
	if out, err := pin.CombinedOutput(); err == nil || !strings.Contains(string(out), "pin a: permission denied") {
		t.Errorf("%v\n%s", err, out)
	}
}
