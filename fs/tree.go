package fs

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"overmind-fs/fs/store"
)

// tree is what all nodes of one mount share.
type tree struct {
	store     *store.Store
	log       *slog.Logger
	owner     store.Caller // of the folders that no filler made
	shared    bool         // other users may use the mount
	started   time.Time
	version   string
	mountedAt string

	passthrough feature
	fdPassing   feature
	hugePages   feature
	pressure    feature

	metrics *prometheus.Registry
	pruner  *pruner

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
