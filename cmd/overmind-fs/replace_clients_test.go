package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/fs/fstest"
	"overmind-fs/schema/schematest"
)

// keepLooking reads all of an entry by its path, over and over.
func keepLooking(entry string) error {
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	fmt.Println("mapped") // as startClient expects
	want := fstest.Content(fstest.StructureNbytes)
	for !ended.Load() {
		if got, err := os.ReadFile(filepath.Join(entry, "structure.pkl")); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes, %w", len(got), err)
		}
		if _, err := os.ReadDir(filepath.Join(entry, "tensors")); err != nil {
			return err
		}
		f, err := os.Open(fstest.Arena(entry))
		if err != nil {
			return err
		}
		_ = f.Close()
		// A change that has to go to one of the two daemons.
		if err := unix.Setxattr(entry, overmindfs.AttrPinned, []byte("1"), 0); err != nil {
			return fmt.Errorf("setxattr: %w", err)
		}
	}
	return nil
}

// holdFill stages at once, or late: when it has been given a byte.
func holdFill(root string, late bool) error {
	if _, err := tryLock(root, "dying"); err != nil {
		return err
	}
	if late {
		fmt.Println("mapped")
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	if err := (fstest.Fill{Root: root, ID: "dying", Size: mib}).Stage(); err != nil {
		return err
	}
	if !late {
		fmt.Println("mapped")
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// tryLock takes the lock of an id, without waiting.
func tryLock(root, id string) (int, error) {
	fd, err := unix.Open(filepath.Join(root, "locks", id), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// halfFill is a fill with its lock held, an arena half written, another not sized yet, and a blob half written.
type halfFill struct {
	fstest.Fill
	lock, arena, structure int
}

func startFill(t *testing.T, f fstest.Fill) *halfFill {
	t.Helper()
	h := &halfFill{Fill: f}
	var err error
	h.lock, err = tryLock(f.Root, f.ID)
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(f.Staging(), "tensors"), 0o755))
	h.arena, err = unix.Open(fstest.Arena(f.Staging()), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	must(t, err)
	h.structure, err = unix.Open(filepath.Join(f.Staging(), "structure.pkl"), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	must(t, err)
	_, err = unix.Write(h.structure, fstest.Content(fstest.StructureNbytes)[:1000])
	must(t, err)
	return h
}

// finish goes on through the open files, which are the old daemon's, and through paths, which are the new one's.
func (h *halfFill) finish(t *testing.T) {
	t.Helper()
	if fd, err := tryLock(h.Root, h.ID); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the lock was lost: %d, %v", fd, err)
	}
	must(t, unix.Ftruncate(h.arena, h.Size))
	data := fstest.Content(h.Size)
	_, err := unix.Pwrite(h.arena, data, 0)
	must(t, err)
	_, err = unix.Write(h.structure, fstest.Content(fstest.StructureNbytes)[1000:])
	must(t, err)
	must(t, os.WriteFile(filepath.Join(h.Staging(), "manifest"), schematest.Encode(h.Manifest()), 0o644))
	must(t, unix.Close(h.arena))
	must(t, unix.Close(h.structure))
	var st unix.Stat_t
	must(t, unix.Stat(fstest.Arena(h.Staging()), &st))
	if st.Size != h.Size {
		t.Errorf("the new mount shows %d bytes, want %d", st.Size, h.Size)
	}
	must(t, h.Commit())
	must(t, unix.Close(h.lock))
	eventually(t, "the lock is free", func() bool {
		fd, err := tryLock(h.Root, h.ID)
		_ = unix.Close(fd)
		return err == nil
	})
}

// unservedMount makes a mount that nobody serves, and returns it with its open /dev/fuse.
func unservedMount(t *testing.T) (mount, fuse int) {
	t.Helper()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	config, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer func() { _ = unix.Close(config) }()
	for name, value := range map[string]string{
		"fd": fmt.Sprint(fuse), "rootmode": "40000", "user_id": "0", "group_id": "0",
	} {
		must(t, unix.FsconfigSetString(config, name, value))
	}
	must(t, unix.FsconfigCreate(config))
	mount, err = unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	must(t, err)
	return mount, fuse
}
