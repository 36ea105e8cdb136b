package doctor

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	overmindfs "overmind-fs/fs"
)

const daemonPID = 42

// healthyMachine has a /proc in which nothing is wrong.
func healthyMachine(t *testing.T) Machine {
	t.Helper()
	m := Machine{Root: t.TempDir(), Kernel: "6.12.1-generic", UID: 1000, CacheRoot: "/mnt/o", Version: "v1"}
	m.Env = map[string]string{}
	limits := "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max open files            20000                20000                files     \n" +
		"Max address space         unlimited            unlimited            bytes     \n"
	for name, text := range map[string]string{
		"etc/fuse.conf":                 "# mount_max = 1000\nuser_allow_other\n",
		"proc/meminfo":                  "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\n", // 32 and 24 GiB
		"proc/swaps":                    "Filename Type Size Used Priority\n",
		"proc/self/limits":              limits,
		"proc/sys/vm/overcommit_memory": "0\n",
		"proc/42/limits":                limits,
		"proc/42/cgroup":                "0::/system.slice/overmind.service\n",
		"sys/fs/cgroup/none":            "",
		"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
	} {
		write(t, m, name, text)
	}
	return m
}

func write(t *testing.T, m Machine, name, text string) {
	t.Helper()
	path := m.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func healthyMount() Mount {
	m := Mount{
		Dir: "/mnt/o", Health: overmindfs.AliveMount, Exists: true, Looked: true,
		Socket: "/run/o/control", SocketMode: 0o600, FolderMode: 0o711, HugeFit: 3,
	}
	m.Status.PID, m.Status.Version = daemonPID, "v1"
	m.Status.Pressure.Active = true
	m.Status.Passthrough.Active, m.Status.FDPassing.Active, m.Status.HugePages.Active = true, true, true
	m.Status.HugePages.HugeArenas, m.Status.HugePages.Arenas = 3, 5
	m.Status.Limits.MaxBytes, m.Status.Bytes.Cached = 16<<30, 8<<30
	return m
}

func TestHealthy(t *testing.T) {
	r := Examine(healthyMachine(t), []Mount{healthyMount()})
	if len(r.Findings) != 0 {
		t.Errorf("%+v", r.Findings)
	}
	if len(r.Checks) != len(machineChecks)+len(mountChecks) {
		t.Errorf("checks: %v", r.Checks)
	}
}

// A mount that went while the others were looked at is nothing to mend.
func TestUnmountedMeanwhile(t *testing.T) {
	r := Examine(healthyMachine(t), []Mount{healthyMount(), {Dir: "/mnt/p", Health: overmindfs.NotMounted}})
	if len(r.Findings) != 0 {
		t.Errorf("%+v", r.Findings)
	}
}

func TestFindings(t *testing.T) {
	inactive := func(reason string) func(*Mount) {
		return func(o *Mount) { o.Status.Passthrough.Active, o.Status.Passthrough.Reason = false, reason }
	}
	tests := []struct {
		name     string
		machine  func(*testing.T, *Machine)
		mount    func(*Mount)
		severity Severity
		check    string
		what     string
		fix      string
	}{
		{name: "disabled", severity: Warning, check: "environment", what: "OVERMIND_DISABLE", fix: "unset OVERMIND_DISABLE",
			machine: func(_ *testing.T, m *Machine) { m.Env["OVERMIND_DISABLE"] = "1" }},
		{name: "no root", severity: Note, check: "environment", what: "OVERMIND_ROOT", fix: "export OVERMIND_ROOT",
			machine: func(_ *testing.T, m *Machine) { m.CacheRoot = "" }},
		{name: "old kernel", severity: Warning, check: "kernel", what: "Linux 6.8.0-40 has no FUSE passthrough", fix: "6.9",
			machine: func(_ *testing.T, m *Machine) { m.Kernel = "6.8.0-40" }},
		{name: "older kernel", severity: Warning, check: "kernel", what: "no huge pages", fix: "6.9",
			machine: func(_ *testing.T, m *Machine) { m.Kernel = "5.15.0" }},
		{name: "may not mount", severity: Note, check: "mounting", what: "no device", fix: "make one",
			machine: func(_ *testing.T, m *Machine) { m.Mounting = cannotMount }},
		{name: "no user_allow_other", severity: Note, check: "fuse.conf", what: "user_allow_other", fix: "fuse.conf",
			machine: func(t *testing.T, m *Machine) { write(t, *m, "etc/fuse.conf", "#user_allow_other\n") }},
		{name: "shell", severity: Warning, check: "shell limits", what: "1.0 GiB of address space, the largest arena needs 2.0 GiB",
			fix: "ulimit -v unlimited", machine: func(t *testing.T, m *Machine) {
				write(t, *m, "proc/self/limits", "Max address space         1073741824           unlimited            bytes\n")
				m.LargestFit = 2 << 30
			}},
		{name: "swap", severity: Note, check: "swap", what: "vm.swappiness is 60", fix: "sysctl vm.swappiness=1",
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n")
				write(t, *m, "proc/sys/vm/swappiness", "60\n")
			}},
		{name: "overcommit", severity: Warning, check: "overcommit", what: "vm.overcommit_memory is 2", fix: "sysctl vm.overcommit_memory=0",
			machine: func(t *testing.T, m *Machine) { write(t, *m, "proc/sys/vm/overcommit_memory", "2\n") }},
		{name: "no loader", severity: Note, check: "python packages", what: "no overmind-fs", fix: "make install",
			machine: func(_ *testing.T, m *Machine) { m.Env["VIRTUAL_ENV"] = "/venv" }},
		{name: "packages", severity: Error, check: "python packages", what: `overmind-fs 0.2.0 and overmind-cext "0.1.0"`,
			fix: "make install", machine: func(t *testing.T, m *Machine) {
				m.Env["VIRTUAL_ENV"] = "/venv"
				write(t, *m, "venv/lib/python3.11/site-packages/overmind_fs-0.2.0.dist-info/METADATA", "")
				write(t, *m, "venv/lib/python3.11/site-packages/overmind_cext-0.1.0.dist-info/METADATA", "")
			}},
		{name: "loader", severity: Warning, check: "python packages", what: "has overmind-fs 0.2.0, this command is 0.3.0+gabc",
			fix: "make install", machine: func(t *testing.T, m *Machine) {
				m.Env["VIRTUAL_ENV"], m.Version = "/venv", "0.3.0+gabc"
				write(t, *m, "venv/lib/python3.11/site-packages/overmind_fs-0.2.0.dist-info/METADATA", "")
				write(t, *m, "venv/lib/python3.11/site-packages/overmind_cext-0.2.0.dist-info/METADATA", "")
			}, mount: func(o *Mount) { o.Status.Version = "0.3.0+gabc" }},

		{name: "dead", severity: Error, check: "mount", what: "dead", fix: "overmind-fs mount --background /mnt/o",
			mount: func(o *Mount) { o.Health, o.Looked = overmindfs.DeadMount, false }},
		{name: "silent", severity: Error, check: "mount", what: "does not answer", fix: "kill -CONT",
			mount: func(o *Mount) { o.Health, o.Looked = overmindfs.SilentMount, false }},
		{name: "other", severity: Warning, check: "mount", what: "another file system", fix: "OVERMIND_ROOT",
			mount: func(o *Mount) { o.Health, o.Looked = overmindfs.OtherMount, false }},
		{name: "other, plain", severity: Note, check: "mount", what: "plain folder", fix: "another folder",
			mount: func(o *Mount) { o.Health, o.Looked, o.Wanted, o.Plain = overmindfs.OtherMount, false, true, true }},
		{name: "no folder", severity: Error, check: "mount", what: "no such folder", fix: "mkdir -p /mnt/o",
			mount: func(o *Mount) { o.Health, o.Looked, o.Wanted, o.Exists = overmindfs.NotMounted, false, true, false }},
		{name: "empty", severity: Warning, check: "mount", what: "empty folder", fix: "overmind-fs mount --background /mnt/o",
			mount: func(o *Mount) { o.Health, o.Looked, o.Wanted, o.Empty = overmindfs.NotMounted, false, true, true }},
		{name: "plain", severity: Note, check: "mount", what: "plain folder", fix: "overmind-fs mount",
			mount: func(o *Mount) { o.Health, o.Looked, o.Wanted, o.Plain = overmindfs.NotMounted, false, true, true }},
		{name: "foreign", severity: Error, check: "mount", what: "neither a mount nor a cache", fix: "overmind-fs mount",
			mount: func(o *Mount) { o.Health, o.Looked, o.Wanted = overmindfs.NotMounted, false, true }},
		{name: "closed", severity: Error, check: "mount", what: "may not use it", fix: "--user $USER",
			mount: func(o *Mount) { o.Looked, o.Closed, o.Wanted = false, true, true }},

		{name: "no passthrough", severity: Warning, check: "passthrough", what: "no passthrough: because", fix: "CONFIG_FUSE_PASSTHROUGH",
			mount: inactive("because")},
		{name: "unprivileged", severity: Warning, check: "passthrough", what: "CAP_SYS_ADMIN", fix: "sudo overmind-fs mount",
			mount: inactive("the daemon lacks CAP_SYS_ADMIN in the initial user namespace")},
		{name: "off", severity: Warning, check: "passthrough", what: "switched off", fix: "umount /mnt/o; overmind-fs mount --background /mnt/o",
			mount: inactive("switched off")},
		{name: "off, replace", severity: Warning, check: "passthrough", what: "switched off",
			fix: "overmind-fs mount --replace --background /mnt/o", mount: inactive("switched off"),
			machine: func(_ *testing.T, m *Machine) { m.CanReplace = true }},
		{name: "fd passing off", severity: Warning, check: "fd passing", what: "switched off", // so that it hands nothing over
			fix:     "overmind-fs umount /mnt/o; overmind-fs mount --background /mnt/o",
			mount:   func(o *Mount) { o.Status.FDPassing.Active, o.Status.FDPassing.Reason = false, "switched off" },
			machine: func(_ *testing.T, m *Machine) { m.CanReplace = true }},
		{name: "no fd passing", severity: Warning, check: "fd passing", what: "no socket", fix: "writable",
			mount: func(o *Mount) { o.Status.FDPassing.Active, o.Status.FDPassing.Reason = false, "no socket" }},
		{name: "huge pages", severity: Warning, check: "huge pages", what: "collapse: invalid", fix: "Linux 6.1",
			mount: func(o *Mount) { o.Status.HugePages.Active, o.Status.HugePages.Reason = false, "collapse: invalid" }},
		{name: "huge pages denied", severity: Warning, check: "huge pages", what: "denied", fix: "shmem_enabled",
			mount: func(o *Mount) { o.Status.HugePages.Active = false },
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "sys/kernel/mm/transparent_hugepage/shmem_enabled", "always never [deny] force\n")
			}},
		{name: "small pages", severity: Warning, check: "huge pages", what: "2 arenas have small pages", fix: "compact_memory",
			mount: func(o *Mount) { o.Status.HugePages.HugeArenas = 1 }},

		{name: "refused", severity: Warning, check: "budget", what: "3 fills did not fit", fix: "--max-bytes SIZE",
			mount: func(o *Mount) { o.Status.Refused = 3 }},
		{name: "pinned", severity: Warning, check: "budget", what: "15 GiB of 16 GiB are pinned", fix: "unpin",
			mount: func(o *Mount) { o.Status.Bytes.Cached, o.Status.Bytes.Pinned = 15<<30, 15<<30 }},
		{name: "draining", severity: Warning, check: "budget", what: "2.0 GiB belong to entries", fix: "fuser -vm /mnt/o",
			mount: func(o *Mount) { o.Status.Bytes.Draining = 2 << 30 }},
		{name: "too large", severity: Error, check: "memory", what: "the budget is 40 GiB", fix: "--max-bytes 50%",
			mount: func(o *Mount) { o.Status.Limits.MaxBytes = 40 << 30 }},
		{name: "cgroup", severity: Error, check: "memory", what: "the daemon's cgroup 12 GiB", fix: "--max-bytes 50%",
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "sys/fs/cgroup/system.slice/memory.max", "12884901888\n")
				write(t, *m, "sys/fs/cgroup/system.slice/memory.current", "0\n")
			}},
		{name: "tight", severity: Warning, check: "memory", what: "the budget has 8.0 GiB left, the memory only 1.0 GiB", fix: "end what else",
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 1048576 kB\n")
			}},
		{name: "pressure", severity: Warning, check: "memory pressure", what: "no pressure stall information", fix: "psi=1",
			mount: func(o *Mount) {
				o.Status.Pressure.Active, o.Status.Pressure.Reason = false, "no pressure stall information"
			}},
		{name: "pressure off", severity: Warning, check: "memory pressure", what: "switched off", fix: "--pressure 10% /mnt/o",
			mount: func(o *Mount) { o.Status.Pressure.Active, o.Status.Pressure.Reason = false, "switched off" }},
		{name: "files", severity: Warning, check: "daemon limits", what: "256 files", fix: "LimitNOFILE",
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "proc/42/limits", "Max open files            256                  256                  files\n")
			}},
		{name: "address space", severity: Warning, check: "daemon limits", what: "1.0 GiB of address space", fix: "LimitAS",
			machine: func(t *testing.T, m *Machine) {
				write(t, *m, "proc/42/limits", "Max address space         1073741824           unlimited            bytes\n")
			}},

		{name: "world-writable socket", severity: Error, check: "control socket", what: "world-writable", fix: "chmod 0600 /run/o/control",
			mount: func(o *Mount) { o.SocketMode = 0o666 }},
		{name: "shared", severity: Warning, check: "control socket", what: "--allow-other", fix: "--user NAME",
			mount: func(o *Mount) { o.SocketMode, o.Shared = 0o666, true }},
		{name: "socket folder", severity: Error, check: "control socket", what: "others can write into /run/o", fix: "chmod 0711 /run/o",
			mount: func(o *Mount) { o.FolderMode = fs.FileMode(0o777) }},
		{name: "socket gone", severity: Error, check: "control socket", what: "is gone", fix: "mount --background /mnt/o",
			mount: func(o *Mount) { o.SocketMode = 0 }},
		{name: "version", severity: Warning, check: "versions", what: "the daemon is version v0, this command v1", fix: "overmind-fs mount",
			mount: func(o *Mount) { o.Status.Version = "v0" }},
		{name: "format", severity: Warning, check: "entries", what: "x: format 2", fix: "evict --root /mnt/o ID",
			mount: func(o *Mount) { o.Unreadable = []string{"x: format 2"} }},
	}
	seen := map[string]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			machine, mount := healthyMachine(t), healthyMount()
			if tt.machine != nil {
				tt.machine(t, &machine)
			}
			if tt.mount != nil {
				tt.mount(&mount)
			}
			r := Examine(machine, []Mount{mount})
			if len(r.Findings) != 1 {
				t.Fatalf("%+v", r.Findings)
			}
			f := r.Findings[0]
			if f.Severity != tt.severity || f.Check != tt.check || !strings.Contains(f.What, tt.what) || !strings.Contains(f.Fix, tt.fix) ||
				f.Cost == "" {
				t.Errorf("%+v", f)
			}
			if onMount := slices.ContainsFunc(mountChecks, func(c mountCheck) bool { return c.name == f.Check }); onMount != (f.Where == "/mnt/o") {
				t.Errorf("where: %q", f.Where)
			}
			if (r.Problems() == 0) != (f.Severity == Note) {
				t.Errorf("%d problems", r.Problems())
			}
			seen[f.Check] = true
		})
	}
	for _, check := range Examine(healthyMachine(t), nil).Checks {
		if !seen[check] {
			t.Errorf("no test makes %q find anything", check)
		}
	}
}

var cannotMount = &overmindfs.MissingError{What: "no device", Fix: "make one"}

// Without a mount that answers, what keeps one from being made is an error. The worst findings come first.
func TestWithoutAMount(t *testing.T) {
	m := healthyMachine(t)
	m.CacheRoot, m.Mounting = "", cannotMount
	r := Examine(m, nil)
	if len(r.Findings) != 2 || r.Findings[0].Severity != Error || r.Findings[1].Severity != Note || r.Problems() != 1 {
		t.Errorf("%+v", r.Findings)
	}
}

// What other users have mounted is their business.
func TestMountOfSomebodyElse(t *testing.T) {
	r := Examine(healthyMachine(t), []Mount{{Dir: "/mnt/o", Health: overmindfs.AliveMount, Closed: true}})
	if len(r.Findings) != 0 {
		t.Errorf("%+v", r.Findings)
	}
}

// Both ways off is worse than one.
func TestNeitherWay(t *testing.T) {
	mount := healthyMount()
	mount.Status.Passthrough.Active, mount.Status.FDPassing.Active = false, false
	r := Examine(healthyMachine(t), []Mount{mount})
	if len(r.Findings) != 2 || r.Findings[0].Severity != Error || r.Findings[0].Check != "passthrough" {
		t.Errorf("%+v", r.Findings)
	}
}
