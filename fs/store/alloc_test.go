package store

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A range for which there is no huge page just then is retried once, and stays small without the others doing so.
func TestSingleHugePagesAreRefused(t *testing.T) {
	if err := ProbeHugePages(NewOS()); err != nil {
		t.Skip("no huge pages: ", err)
	}
	const pages = 16
	for name, c := range map[string]struct {
		refused map[int]int // the range, and how often
		fails   bool
		calls   int
	}{
		"one, once":   {map[int]int{3: 1}, false, pages + 1},
		"two, always": {map[int]int{3: 2, 9: 2}, false, pages + 2},
		"three":       {map[int]int{3: 2, 4: 2, 9: 2}, true, 10 + 3},
	} {
		t.Run(name, func(t *testing.T) {
			calls := NewOS()
			real, asked, first := calls.Madvise, 0, uintptr(0)
			left := map[int]int{}
			for at, times := range c.refused {
				left[at] = times
			}
			calls.Madvise = func(b []byte, advice int) error {
				at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
				if first == 0 {
					first = at
				}
				if advice != unix.MADV_COLLAPSE {
					return real(b, advice)
				}
				asked++
				if n := int(at-first) / hugePage; left[n] > 0 {
					left[n]--
					return unix.ENOMEM
				}
				return real(b, advice)
			}
			fd, err := newMemfd(&calls, "test")
			must(t, err)
			defer func() { _ = unix.Close(fd) }()
			must(t, unix.Ftruncate(fd, pages*hugePage))
			if err := allocateHuge(&calls, fd, pages*hugePage); (err != nil) != c.fails {
				t.Fatalf("allocateHuge: %v", err)
			}
			if asked != c.calls {
				t.Errorf("%d calls, want %d", asked, c.calls)
			}
			if got := allocated(t, fd); !c.fails && got != pages*hugePage {
				t.Errorf("%d bytes are allocated", got)
			}
		})
	}
}
