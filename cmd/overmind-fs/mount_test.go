package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
)

func TestMountRefusesBadFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"):      "no such folder",
		filepath.Join(dir, "no", "parent"): "no such folder",
		file:                               "not a folder",
		dir:                                "is not empty",
		"/proc":                            "another file system (proc)",
	} {
		code, out, errOut := overmind(t, "mount", path)
		if code == exitOK || out != "" || strings.Count(errOut, "\n") != 1 ||
			!strings.Contains(errOut, want) || !strings.Contains(errOut, path) {
			t.Errorf("%s: exit %d, %q, want one line with %q", path, code, errOut, want)
		}
	}
}

// A file that is missing is not a cache that is missing.
func TestMountWithoutALogFile(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"mount"}, {"mount", "--background"}} {
		wantRun(t, exitFailure, "--log-file: open /nope/log", append(args, "--log-file", "/nope/log", dir)...)
	}
}

func TestTimesMayBeDays(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "90m": 90 * time.Minute, "1d12h": 36 * time.Hour, "200ms": 200 * time.Millisecond} {
		if got, err := parseAge("ttl", in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	t.Setenv(rootEnv, "")
	for _, args := range [][]string{
		{"mount"}, {"mount", "a", "b"}, {"mount", "a", "--max-bytes", "many"}, {"mount", "a", "--max-bytes", "0"},
		{"mount", "a", "--max-bytes", "101%"}, {"mount", "a", "--max-entries", "-1"}, {"mount", "a", "--passthrough", "x"},
		{"mount", "a", "--fd-passing", "x"}, {"mount", "a", "--ttl", "soon"}, {"mount", "a", "--ttl", "-1s"},
		{"evict", "--older-than", "0"},
		{"mount", "a", "--pressure", "0%"}, {"mount", "a", "--pressure", "101%"}, {"mount", "a", "--pressure", "10"},
		{"mount", "a", "--log-level", "loud"}, {"mount", "a", "--log-format", "xml"}, {"mount", "a", "--nonsense"},
		{"mount", "a", "--user", "root", "--allow-other"},
		{"mount", "a", "--share"},
		{"nonsense"}, {"ls", "--sort", "x"}, {"evict"}, {"evict", "--all", "x"}, {"show"}, {"umount"}, {"pin"},
		{"mount", "/nope", "--user", "no such user"}, {"--root", "x", "mount", "a"}, {"umount", "a", "b"}, {"ls", "x"},
		{"evict", "--prefix"}, {"evict", "--prefix", ""}, {"evict", "x", "--force"}, {"evict", "--older-than", "soon"},
		{"top", "--interval", "1ms"}, {"completion"}, {"completion", "tcsh"}, {"man", "x"}, {"doctor", "x"},
	} {
		if code, out, errOut := overmind(t, args...); code != exitUsage || errOut == "" {
			t.Errorf("%v: exit %d, %q %q", args, code, out, errOut)
		}
	}
}

func TestParseBudget(t *testing.T) {
	for in, want := range map[string]uint64{"16GiB": 16 << 30, "8g": 8e9, "1000": 1000, "64 MiB": 64 << 20} {
		if got, err := parseBudget(in); err != nil || got != want {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	half, err := parseBudget("50%")
	must(t, err)
	whole, err := parseBudget("100%")
	must(t, err)
	if half < 1<<20 || whole/half != 2 {
		t.Errorf("50%% is %d, 100%% is %d", half, whole)
	}
}

func TestFlagsMayFollowArguments(t *testing.T) {
	app := newApp()
	for in, want := range map[string]string{
		"x mount DIR --max-bytes 8GiB -b":  "x mount --max-bytes 8GiB -b -- DIR",
		"x mount --max-bytes=8GiB DIR":     "x mount --max-bytes=8GiB -- DIR",
		"x evict a --root R b":             "x evict --root R -- a b",
		"x show -- -a":                     "x show -- -a",
		"x status":                         "x status",
		"x --version":                      "x --version",
		"x mount DIR --log-level":          "x mount --log-level -- DIR",
		"x ls --json --sort size -r /mnt ": "x ls --json --sort size -r /mnt",
		"x --root R ls --json":             "x ls --root R --json",
		"x -r=R show a":                    "x show -r=R -- a",
		"x --root show":                    "x --root show",
		"x show a -r R " + completeFlag:    "x show -r R a " + completeFlag,
	} {
		if got := strings.Join(flagsFirst(app, strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// The kernel escapes what would break the lines of mountinfo.
func TestOddMountPoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "- a\tb\nc\\040,#%s")
	must(t, os.Mkdir(dir, 0o755))
	d := startDaemon(t, dir)
	wantRun(t, exitFailure, "mounted there already", "mount", d.dir)
	wantRun(t, exitOK, "", "umount", d.dir)
	d.wantExit(t, exitOK)
}

// Without passthrough too, where the daemon serves what is open.
func TestSignalsWithOpenFiles(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		d := startDaemon(t, t.TempDir(), "--passthrough", "off")
		f := fill(t, d.dir, "a")
		var clients []*client
		for _, name := range []string{"manifest", "structure.pkl", "tensors/" + fstest.ArenaName, "storages/0.all"} {
			clients = append(clients, startClientAs(t, openEnv, filepath.Join(f.Entry(), name)))
		}
		clients = append(clients, startClientAs(t, openEnv, filepath.Join(d.dir, "locks", "a")))
		must(t, d.cmd.Process.Signal(sig))
		d.wantExit(t, exitOK)
		for _, c := range clients {
			c.wantSame(t) // closing works after the daemon
		}
	}
}

// Each signal unmounts and ends the daemon with 0, also while a client has files open and mapped; its mapping lives on.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprint(sig, busy), func(t *testing.T) {
				d := startDaemon(t, t.TempDir())
				f := fill(t, d.dir, "a")
				var c *client
				if busy {
					s, err := readStatus(d.dir)
					must(t, err)
					if !s.Passthrough.Active {
						t.Skipf("no passthrough: %s", s.Passthrough.Reason)
					}
					c = startClient(t, fstest.Arena(f.Entry()))
				}
				must(t, d.cmd.Process.Signal(sig))
				d.wantExit(t, exitOK)
				if busy {
					c.wantSame(t)
				}
			})
		}
	}
}

func TestUnmountedByOthers(t *testing.T) {
	for command, lazy := range map[string]bool{
		"umount": false, "umount -l": true, "fusermount3 -u": false, "fusermount3 -u -z": true,
	} {
		t.Run(command, func(t *testing.T) {
			args := strings.Fields(command)
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skip(err)
			}
			d := startDaemon(t, t.TempDir())
			f := fill(t, d.dir, "a")
			var c *client
			if lazy {
				c = startClientAs(t, openEnv, fstest.Arena(f.Entry()))
			}
			must(t, retried(args, d.dir))
			if lazy {
				c.wantSame(t) // the mount goes with the last file that is closed
			}
			d.wantExit(t, exitOK)
		})
	}
}

// retried runs an unmount command until it succeeds: a file that was just closed keeps the mount busy for a moment.
func retried(args []string, dir string) error {
	for try := 0; ; try++ {
		err := exec.Command(args[0], append(args[1:], dir)...).Run()
		if err == nil || try == 100 {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestUmount(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	f := fill(t, d.dir, "a")
	wantRun(t, exitOK, "", "umount", d.dir)
	d.wantExit(t, exitOK)
	wantRun(t, exitNotFound, "not an overmind mount", "umount", d.dir)

	d = startDaemon(t, d.dir)
	fill(t, d.dir, "a")
	c := startClient(t, fstest.Arena(f.Entry()))
	wantRun(t, exitOK, "is in use", "umount", d.dir)
	if kind, _ := overmindfs.MountedType(d.dir); kind != "" {
		t.Error("still mounted")
	}
	c.wantSame(t)
	d.wantExit(t, exitOK)
}

// close(2) does not wait for the daemon: a client of one that hangs goes on.
func TestCloseWhileTheDaemonHangs(t *testing.T) {
	for _, way := range []string{"auto", "off"} {
		t.Run(way, func(t *testing.T) {
			d := startDaemon(t, t.TempDir(), "--passthrough", way)
			f := fill(t, d.dir, "a")
			var clients []*client
			for _, path := range []string{
				fstest.Arena(f.Entry()), filepath.Join(f.Entry(), "manifest"), filepath.Join(f.Entry(), "manifest.json"),
				filepath.Join(f.Entry(), "storages", "0.all"), filepath.Join(d.dir, "status.json"),
			} {
				clients = append(clients, startClientAs(t, openEnv, path))
			}
			must(t, d.cmd.Process.Signal(syscall.SIGSTOP))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for _, c := range clients {
					c.wantSame(t)
				}
			}()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Error("close waits for the daemon")
			}
			must(t, d.cmd.Process.Signal(syscall.SIGCONT))
			<-ended
		})
	}
}

// A daemon that has ended, and whose parent has not noticed, is not waited for.
func TestZombieIsNotRunning(t *testing.T) {
	if !running(os.Getpid()) || running(1<<22+1) {
		t.Error("wrong about itself or about nobody")
	}
	c := exec.Command("true")
	must(t, c.Start())
	for deadline := time.Now().Add(30 * time.Second); running(c.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie runs")
		}
	}
	must(t, unix.Kill(c.Process.Pid, 0)) // it is still there
	must(t, c.Wait())
}

func TestFDPassing(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	path, err := os.Readlink(filepath.Join(d.dir, "control"))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	wantRun(t, exitOK, "fd passing", "status", "--root", d.dir)
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wantExit(t, exitOK)
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", filepath.Dir(path), err)
	}
	// One that is killed leaves it, for the next to remove.
	d = startDaemon(t, d.dir)
	path, err = os.Readlink(filepath.Join(d.dir, "control"))
	must(t, err)
	must(t, d.cmd.Process.Kill())
	<-d.ended
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	d = startDaemon(t, d.dir, "--fd-passing", "off")
	startDaemon(t, t.TempDir())
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", filepath.Dir(path), err)
	}
	wantRun(t, exitOK, "not active: switched off", "status", "--root", d.dir)
}

func TestSecondMountIsRefused(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	wantRun(t, exitFailure, "mounted there already", "mount", d.dir)
	waitAlive(t, d.dir)
}

// What a killed daemon leaves is detached by the next one; a client's mapping survives both.
func TestMountOverDeadMount(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	f := fill(t, d.dir, "a")
	s, err := readStatus(d.dir)
	must(t, err)
	var c *client
	if s.Passthrough.Active {
		c = startClient(t, fstest.Arena(f.Entry()))
	}
	must(t, d.cmd.Process.Kill())
	<-d.ended
	if h, _ := overmindfs.ProbeMount(d.dir); h != overmindfs.DeadMount {
		t.Fatalf("health %d", h)
	}
	d2 := startDaemon(t, d.dir)
	fill(t, d.dir, "a")
	if c != nil {
		c.wantSame(t)
	}
	must(t, d2.cmd.Process.Signal(unix.SIGTERM))
	d2.wantExit(t, exitOK)
	if !strings.Contains(d2.stderr.String(), "daemon is dead") {
		t.Errorf("not logged:\n%s", d2.stderr)
	}
}

func TestUmountOfDeadMount(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	must(t, d.cmd.Process.Kill())
	<-d.ended
	wantRun(t, exitOK, "", "umount", d.dir)
	if kind, _ := overmindfs.MountedType(d.dir); kind != "" {
		t.Error("still mounted")
	}
}
