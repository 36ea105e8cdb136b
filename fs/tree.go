package fs

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// tree is what all nodes of one mount share.
type tree struct {
	store     *store.Store
	log       *slog.Logger
	owner     store.Caller // of the folders that no filler made
	shared    bool         // other users may use the mount
	share     bool         // and may read each other's entries
	started   time.Time
	version   string
	mountedAt string

	passthrough feature
	fdPassing   feature
	hugePages   feature
	pressure    feature

	metrics  *prometheus.Registry
	pruner   *pruner
	giveBack *giveBack

	// Requests for arena bytes that the daemon served itself; with passthrough there are none.
	arenaReads  atomic.Uint64
	arenaWrites atomic.Uint64

	misses atomic.Uint64 // lookups of entries that are not there
}

// feature is a fast path that depends on the kernel and on privileges.
type feature struct {
	Active bool   `json:"active"`
	Reason string `json:"reason"` // why it is not active
}

func active(err error) feature {
	if err != nil {
		return feature{Reason: err.Error()}
	}
	return feature{Active: true}
}

// mayFill says whether a user may fill, and lock, what has this id. A user's ids are nobody else's, so that none can be
// taken before its user comes. Root may do what it wants.
func (t *tree) mayFill(id string, c store.Caller) error {
	if c.UID != 0 && c.UID != schema.OwnerOf(id, t.owner.UID) {
		return fmt.Errorf("%w of the id %s", store.ErrNotOwner, id)
	}
	return nil
}

// mayRead says whether a user may read the entries of another one. The kernel asks the modes of their folders.
func (t *tree) mayRead(c store.Caller, owner store.Caller) bool {
	return t.entryMode() != private || c.Owns(owner)
}

// private is the mode of an entry's folder that only its owner passes.
const private = 0o700

func (t *tree) entryMode() uint32 {
	if t.shared && !t.share {
		return private
	}
	return 0o755
}
