package store

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OS are the system calls that can fail for reasons outside the store. Tests replace single ones to inject faults.
type OS struct {
	MemfdCreate func(name string, flags int) (fd int, err error)
	Ftruncate   func(fd int, size int64) error
	Fallocate   func(fd int, mode uint32, off, length int64) error
	Pwrite      func(fd int, data []byte, off int64) (n int, err error)
	Mmap        func(fd int, off int64, addr unsafe.Pointer, length uintptr, prot, flags int) (unsafe.Pointer, error)
	Munmap      func(addr unsafe.Pointer, length uintptr) error
	Madvise     func(b []byte, advice int) error
	AddSeals    func(fd, seals int) error
	GetSeals    func(fd int) (seals int, err error)
	// Reopen opens the file behind fd anew, close-on-exec.
	Reopen func(fd, mode int) (newFD int, err error)
	// Headroom returns how many bytes of memory can still be taken without endangering this process.
	Headroom func() (uint64, error)
	// Scarce says whether free memory is so low that evicting helps those who wait for some.
	Scarce func() (bool, error)
}

// NewOS returns the real system calls.
func NewOS() OS {
	return OS{
		MemfdCreate: unix.MemfdCreate,
		Ftruncate:   unix.Ftruncate,
		Fallocate:   unix.Fallocate,
		Pwrite:      unix.Pwrite,
		Mmap:        unix.MmapPtr,
		Munmap:      unix.MunmapPtr,
		Madvise:     unix.Madvise,
		AddSeals: func(fd, seals int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			return err
		},
		GetSeals: func(fd int) (int, error) {
			return unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		},
		Reopen: func(fd, mode int) (int, error) {
			return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_CLOEXEC, 0)
		},
		Headroom: Headroom,
		Scarce:   Scarce,
	}
}
