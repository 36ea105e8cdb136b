package fs

import (
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
)

// pruneAfter is how long the nodes of an entry stay when nobody looks at it any more.
const pruneAfter = time.Minute

// crowd is how many names may be remembered before they go after a thirtieth of that time: nobody works on so many, a
// burst of fills has left them.
const crowd = 512

// pruner makes the kernel forget the files of entries that nobody looks at, so that the daemon can forget them too: for
// each it keeps a node as long as the kernel knows its name, and of itself the kernel gives names up only when memory
// is short. Names of what is open stay. Kernels before 6.18 cannot be asked.
type pruner struct {
	after time.Duration
	freed func() // called when nodes were forgotten

	mu      sync.Mutex
	folders []*fusefs.Inode      // pipelines/ and locks/
	seen    map[string]time.Time // last look, by name in these folders
	timer   *time.Timer          // nil: nothing to wait for
	off     bool
}

// watch gives it the folders whose children come and go.
func (p *pruner) watch(folders ...*fusefs.Inode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.folders = folders
}

// saw is called when somebody looks up, or lets go of, something of that name.
func (p *pruner) saw(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return
	}
	before := len(p.seen)
	p.seen[name] = time.Now()
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(p.stay(), p.prune)
	case before == crowd && len(p.seen) > crowd:
		p.timer.Reset(p.stay())
	}
}

// stay is for how long a name stays after its last look.
func (p *pruner) stay() time.Duration {
	if len(p.seen) > crowd {
		return p.after / 30
	}
	return p.after
}

// stop is called when the mount is gone.
func (p *pruner) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// prune asks for what nobody has looked at for long enough, and waits for the next. The kernel is asked without p.mu: it
// may wait for a request that is under way in one of the folders.
func (p *pruner) prune() {
	nodes := p.due()
	const atOnce = 256
	if len(nodes) > 0 {
		defer p.freed()
	}
	for len(nodes) > 0 {
		some := nodes[:min(atOnce, len(nodes))]
		nodes = nodes[len(some):]
		if errno := some[0].NotifyPrune(some); errno == syscall.ENOSYS {
			p.stop()
			return
		}
	}
}

// due takes the names out that are due and returns their nodes, children before their folder.
func (p *pruner) due() []*fusefs.Inode {
	p.mu.Lock()
	defer p.mu.Unlock()
	var nodes []*fusefs.Inode
	var next time.Duration
	stay := p.stay()
	for name, last := range p.seen {
		if left := stay - time.Since(last); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		delete(p.seen, name)
		for _, folder := range p.folders {
			nodes = appendTree(nodes, folder.GetChild(name))
		}
	}
	if len(p.seen) == 0 {
		p.seen = map[string]time.Time{} // maps never shrink
	}
	p.timer = nil
	if next > 0 && !p.off {
		// Not at each one's own time: all of them are gone over each time.
		p.timer = time.AfterFunc(max(next, stay/8), p.prune)
	}
	return nodes
}

func appendTree(nodes []*fusefs.Inode, n *fusefs.Inode) []*fusefs.Inode {
	if n == nil {
		return nodes
	}
	for _, child := range n.Children() {
		nodes = appendTree(nodes, child)
	}
	return append(nodes, n)
}
