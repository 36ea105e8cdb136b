package fs_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
)

// What attackers do. Each command prints a line for each attempt, its name and its errno.
func init() {
	childCommands["tamper"] = func(a []string) error {
		return tamper(func() (int, error) { return unix.Open(a[0], unix.O_RDONLY, 0) })
	}
	childCommands["tamperPassed"] = func(a []string) error {
		return tamper(func() (int, error) {
			inode, err := strconv.ParseUint(a[2], 10, 64)
			if err != nil {
				return -1, err
			}
			return passedBy(a[0], false, a[1], inode)
		})
	}
	childCommands["meddle"] = func(a []string) error { return meddle(a[0], a[1], a[2]) }
	childCommands["keepWriter"] = func(a []string) error { return keepWriter(childFill(a[:3]), a[3] == "passed") }
	childCommands["openLocks"] = func(a []string) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 8192, Max: 8192}); err != nil {
			return err
		}
		return until(8000, func(n int) error {
			_, err := unix.Open(fmt.Sprintf("%s/locks/x%d.u%d", a[0], n, os.Getuid()), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			return err
		})
	}
	childCommands["makeStagings"] = func(a []string) error {
		return until(1000, func(n int) error {
			id := fmt.Sprintf("x%d.u%d", n, os.Getuid())
			if err := openLock(a[0], id); err != nil {
				return err
			}
			return unix.Mkdir(filepath.Join(a[0], "staging", id), 0o700)
		})
	}
	childCommands["makeArenas"] = func(a []string) error {
		folder, err := emptyStaging(a[0], "y")
		if err != nil {
			return err
		}
		return until(1000, func(n int) error {
			fd, err := unix.Open(fmt.Sprintf("%s/tensors/%d.safetensors", folder, n), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		})
	}
	childCommands["askForTooMuch"] = func(a []string) error { return askForTooMuch(a[0]) }
	childCommands["flood"] = func(a []string) error {
		for range 300 {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: a[0], Net: "unixpacket"})
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
		}
		fmt.Println("flooded")
		hold()
		return nil
	}
}

// openLock opens a lock and keeps it open until the process ends.
func openLock(root, id string) error {
	_, err := unix.Open(filepath.Join(root, "locks", id), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	return err
}

func emptyStaging(root, name string) (string, error) {
	id := idOf(uint32(os.Getuid()), name)
	folder := filepath.Join(root, "staging", id)
	return folder, errors.Join(openLock(root, id), os.MkdirAll(folder+"/tensors", 0o700))
}

func said(name string, err error) { fmt.Println(name, errnoName(err)) }

// until counts what succeeds, says how it ended, and keeps all of it.
func until(most int, do func(int) error) error {
	for n := range most {
		if err := do(n); err != nil {
			fmt.Println(n, errnoName(err))
			hold()
			return nil
		}
	}
	return errors.New("no end")
}

func raw(trap uintptr, a ...uintptr) error {
	for len(a) < 6 {
		a = append(a, 0)
	}
	if _, _, errno := syscall.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// tamper tries every way from a descriptor for reading to a change of the bytes that others see.
func tamper(open func() (int, error)) error {
	fd, err := open()
	if err != nil {
		return err
	}
	evil := []byte("evil")
	write := func(name string, fd int) {
		_, err := unix.Pwrite(fd, evil, 0)
		said(name+" write", err)
		said(name+" truncate", unix.Ftruncate(fd, 0))
		said(name+" grow", unix.Ftruncate(fd, 10*mib))
		said(name+" fallocate", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))
		mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			copy(mem, evil)
		}
		said(name+" map", err)
	}
	write("fd", fd)
	if os.Getuid() != 0 { // root and the owner of the daemon could do more
		claim(fd)
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil { // as it is for a memfd: its seals decide
		write("reopened", again)
	} else {
		said("reopen", err)
	}
	_, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	said("reopen to truncate", err)
	shared, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	at := uintptr(unsafe.Pointer(&shared[0]))
	said("mprotect", raw(unix.SYS_MPROTECT, at, 4096, unix.PROT_READ|unix.PROT_WRITE))
	said("mremap to a second mapping and mprotect", func() error {
		moved, _, errno := syscall.Syscall6(unix.SYS_MREMAP, at, 0, 4096, 1, 0, 0)
		if errno != 0 {
			return errno
		}
		return raw(unix.SYS_MPROTECT, moved, 4096, unix.PROT_READ|unix.PROT_WRITE)
	}())
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err == nil {
		_, err = mem.WriteAt(evil, int64(at))
	}
	said("/proc/self/mem", err)
	private, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	copy(private, evil) // one's own
	return nil
}

// claim tries what changes a file for everybody who has it, and not its bytes.
func claim(fd int) {
	seal := func(seals int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		return err
	}
	said("claim: seal", seal(unix.F_SEAL_FUTURE_WRITE))
	said("claim: the last seal", seal(unix.F_SEAL_SEAL))
	said("claim: chmod", unix.Fchmod(fd, 0))
	said("claim: chown", unix.Fchown(fd, os.Getuid(), os.Getgid()))
	said("claim: attribute", unix.Fsetxattr(fd, "user.x", []byte("x"), 0))
	said("claim: times", unix.Futimes(fd, []unix.Timeval{{Sec: 1}, {Sec: 1}}))
	said("claim: ioctl to make it immutable", unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0x10)) // FS_IMMUTABLE_FL
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Getuid() { // one's own file: the kernel does not ask
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		said("claim: lease", err)
	}
	// Of the descriptor that this process has, and of no other.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND|unix.O_NONBLOCK|unix.O_ASYNC)
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETOWN, os.Getpid())
	_ = unix.Flock(fd, unix.LOCK_EX)
	_, _ = unix.Seek(fd, 1, unix.SEEK_SET)
}

// meddle tries everything on a published and a staged entry of another user.
func meddle(root, published, staged string) error {
	entry, staging := filepath.Join(root, "pipelines", published), filepath.Join(root, "staging", staged)
	mine := fmt.Sprintf("mine.u%d", os.Getuid())
	f := fstest.Fill{Root: root, ID: mine, Size: mib}
	if err := errors.Join(openLock(root, mine), f.Stage()); err != nil {
		return err
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	said("evict", unix.Rmdir(entry))
	said("unlink a manifest", unix.Unlink(entry+"/manifest"))
	said("unlink an arena", unix.Unlink(fstest.Arena(entry)))
	said("pin", unix.Setxattr(entry, "user.overmind.pinned", []byte("1"), 0))
	said("unpin", unix.Setxattr(entry, "user.overmind.pinned", []byte("0"), 0))
	said("chmod", unix.Chmod(entry, 0o777))
	said("chown", unix.Chown(entry, os.Getuid(), os.Getgid()))
	said("rename away", unix.Rename(entry, filepath.Join(root, "pipelines", mine)))
	said("rename to staging", unix.Rename(entry, staging))
	said("replace by one's own", unix.Rename(f.Staging(), entry))
	said("exchange", unix.Renameat2(unix.AT_FDCWD, f.Staging(), unix.AT_FDCWD, entry, unix.RENAME_EXCHANGE))
	said("link an arena", unix.Link(fstest.Arena(entry), f.Staging()+"/tensors/x.safetensors"))
	said("symlink into pipelines", unix.Symlink("/etc", filepath.Join(root, "pipelines", "x")))
	said("fill under the id", unix.Mkdir(filepath.Join(root, "staging", published), 0o700))
	said("fill under an id to come", unix.Mkdir(filepath.Join(root, "staging", "new"+filepath.Ext(published)), 0o700))
	said("lock the id", open(filepath.Join(root, "locks", published), unix.O_RDWR|unix.O_CREAT))
	said("lock the id by reading", open(filepath.Join(root, "locks", published), unix.O_RDONLY))
	said("drop a fill", unix.Rmdir(staging))
	said("commit a fill", unix.Rename(staging, filepath.Join(root, "pipelines", staged)))
	said("reserve for a fill", unix.Setxattr(staging, "user.overmind.reserve", []byte("4096"), 0))
	said("write into a fill", open(fstest.Arena(staging), unix.O_RDWR))
	said("read a fill", open(staging+"/structure.pkl", unix.O_RDONLY))
	said("add to a fill", open(staging+"/tensors/x.safetensors", unix.O_RDWR|unix.O_CREAT))
	said("write a manifest", open(entry+"/manifest", unix.O_RDWR))
	said("truncate a pickle", open(entry+"/structure.pkl", unix.O_WRONLY|unix.O_TRUNC))
	for _, name := range []string{"manifest", "manifest.json", "structure.pkl", "tensors/" + fstest.ArenaName, "storages/0.all"} {
		said("read: "+name, open(filepath.Join(entry, name), unix.O_RDONLY))
	}
	return nil
}

// keepWriter fills, keeps what can be kept across the commit, and then tries to write through it.
func keepWriter(f fstest.Fill, passedOver bool) error {
	if err := errors.Join(openLock(f.Root, f.ID), f.Stage()); err != nil {
		return err
	}
	if !passedOver {
		fd, err := unix.Open(fstest.Arena(f.Staging()), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		said("commit with a handle", f.Commit())
		mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
		said("commit with a mapping", f.Commit())
		return unix.Munmap(mem)
	}
	path, err := os.Readlink(filepath.Join(f.Root, "control"))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(fstest.Arena(f.Staging()), &st); err != nil {
		return err
	}
	fd, err := passedBy(path, true, f.ID, st.Ino)
	if err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		return err
	}
	return tamper(func() (int, error) { return fd, nil })
}

// askForTooMuch asks for 10 TB in each way that there is.
func askForTooMuch(root string) error {
	folder, err := emptyStaging(root, "z")
	if err != nil {
		return err
	}
	const much = 10 << 40
	said("reserve", unix.Setxattr(folder, "user.overmind.reserve", []byte(strconv.Itoa(much)), 0))
	said("reserve more than a number", unix.Setxattr(folder, "user.overmind.reserve", []byte("99999999999999999999"), 0))
	for name, path := range map[string]string{"arena": fstest.Arena(folder), "manifest": folder + "/manifest"} {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		said(name+" ftruncate", unix.Ftruncate(fd, much))
		said(name+" fallocate", unix.Fallocate(fd, 0, 0, much))
		if name == "manifest" { // with passthrough the kernel writes an arena; the commit is refused then
			_, err = unix.Pwrite(fd, []byte("x"), much)
			said(name+" write", err)
		}
	}
	return unix.Rmdir(folder)
}
