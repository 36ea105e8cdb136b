package fs_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/fstest"
)

// The kernel knows the names of an open file and of the folders above it when its entry goes; with the lease they go,
// too.
func TestRemovedEntryIsForgottenWithItsLastLease(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		f := m.fill(t, "a", mib)
		c := start(t, 0, "open", fstest.Arena(f.Entry()))
		c.line()
		nodes := m.NodesOf("a")
		if len(nodes) < 3 {
			t.Fatalf("%d nodes, want at least the entry, tensors/ and the arena", len(nodes))
		}
		must(t, unix.Rmdir(f.Entry()))
		c.finish()
		for i, n := range nodes {
			eventually(t, fmt.Sprintf("node %d of %d is forgotten", i, len(nodes)), n.Forgotten) //nolint:staticcheck // NodeOnForgetter is for nodes that want to know
		}
	})
}
