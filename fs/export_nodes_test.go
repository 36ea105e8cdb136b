package fs

import fusefs "github.com/hanwen/go-fuse/v2/fs"

// NodesOf returns the nodes of a published entry that the kernel knows.
func (m *Mount) NodesOf(id string) []*fusefs.Inode {
	var found []*fusefs.Inode
	var add func(n *fusefs.Inode)
	add = func(n *fusefs.Inode) {
		if n != nil {
			found = append(found, n)
			for _, child := range n.Children() {
				add(child)
			}
		}
	}
	add(m.root.GetChild("pipelines").GetChild(id))
	return found
}
