package store

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugePage  = 2 << 20
	smallPage = 4 << 10
	// refusable is the part of its pages, one of so many, that may stay small: memory is in pieces here and there.
	refusable = 8
)

// allocate gives an empty memfd its final size and all of its memory, so that no later write can meet a full
// machine, and fixes the size. It uses huge pages where the kernel grants them, which needs no system setting: pages
// are collapsed into huge ones explicitly. On error the memfd is empty again. It reports whether huge pages are used.
func allocate(os *OS, fd int, size uint64, wantHuge bool) (huge bool, err error) {
	if err := os.Ftruncate(fd, int64(size)); err != nil {
		return false, fmt.Errorf("ftruncate: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Ftruncate(fd, 0) // the memory goes with the close at the latest
		}
	}()
	if wantHuge && size >= hugePage {
		huge = allocateHuge(os, fd, size) == nil
	}
	if !huge {
		if err := os.Fallocate(fd, 0, 0, int64(size)); err != nil {
			return false, fmt.Errorf("fallocate: %w", err)
		}
	}
	if err := os.AddSeals(fd, sizeSeals); err != nil {
		return false, fmt.Errorf("seal size: %w", err)
	}
	return huge, nil
}

// allocateHuge fills fd with huge pages, except for a tail that is smaller than one. MADV_COLLAPSE needs a page to
// start from in every range, and that is faulted in with MADV_POPULATE_WRITE: unlike a store to the mapping, it
// returns an error instead of raising SIGBUS when there is no memory.
func allocateHuge(os *OS, fd int, size uint64) error {
	reserved := uintptr(size) + hugePage
	base, err := os.Mmap(-1, 0, nil, reserved, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { _ = os.Munmap(base, reserved) }()

	shift := (hugePage - uintptr(base)%hugePage) % hugePage
	aligned := unsafe.Add(base, shift)
	at, err := os.Mmap(fd, 0, aligned, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	mem := unsafe.Slice((*byte)(at), size)
	whole := size / hugePage * hugePage
	for off := uint64(0); off < whole; off += hugePage {
		if err := os.Madvise(mem[off:off+smallPage], unix.MADV_POPULATE_WRITE); err != nil {
			return fmt.Errorf("populate: %w", err)
		}
	}
	refused := 0
	for off := uint64(0); off < whole; off += hugePage {
		part := mem[off : off+hugePage]
		err := os.Madvise(part, unix.MADV_COLLAPSE)
		if retryable(err) { // the first attempt may have had to make room
			err = os.Madvise(part, unix.MADV_COLLAPSE)
		}
		if err == nil {
			continue
		}
		if refused++; !retryable(err) || refused > int(whole/hugePage/refusable) {
			return fmt.Errorf("collapse: %w", err)
		}
		if err := os.Madvise(part, unix.MADV_POPULATE_WRITE); err != nil {
			return fmt.Errorf("populate: %w", err)
		}
	}
	if whole < size {
		if err := os.Madvise(mem[whole:], unix.MADV_POPULATE_WRITE); err != nil {
			return fmt.Errorf("populate: %w", err)
		}
	}
	return nil
}

// retryable says whether the kernel only lacked a huge page, or could not get at the small ones, just then.
func retryable(err error) bool {
	return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY)
}

// ProbeHugePages tries one huge page and returns nil when allocations get them.
func ProbeHugePages(os OS) error {
	fd, err := newMemfd(&os, "overmind-probe")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := os.Ftruncate(fd, hugePage); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	return allocateHuge(&os, fd, hugePage)
}
