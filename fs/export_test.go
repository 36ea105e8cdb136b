package fs

import "context"

// WaitMount makes the mount usable by the process that serves it, see New.
func (m *Mount) WaitMount() error { return m.server.WaitMount() }

// AddPanickingFile adds a file to the root whose open panics in the daemon.
func (m *Mount) AddPanickingFile(name string) {
	node := &generatedFile{tree: m.tree, content: func() ([]byte, error) { panic("on purpose") }}
	m.root.AddChild(name, m.root.NewPersistentInode(context.Background(), node, regular(999)), false)
}
