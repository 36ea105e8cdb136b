package fs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
)

// Status is the content of status.json.
type Status struct {
	Version     string                  `json:"version"`
	Mount       string                  `json:"mount"`
	PID         int                     `json:"pid"`           // in the daemon's PID namespace
	PIDSpace    uint64                  `json:"pid_namespace"` // as ls -i /proc/self/ns/pid; 0 when unknown
	UID         uint32                  `json:"uid"`
	UptimeS     float64                 `json:"uptime_s"`
	Limits      StatusLimits            `json:"limits"`
	Bytes       StatusBytes             `json:"bytes"`
	Entries     int                     `json:"entries"`
	Leases      int                     `json:"leases"`
	Passthrough feature                 `json:"passthrough"`
	FDPassing   feature                 `json:"fd_passing"`
	HugePages   StatusHugePages         `json:"huge_pages"`
	Pressure    StatusPressure          `json:"pressure"`
	Fills       StatusFills             `json:"fills"`
	Evictions   map[store.Reason]uint64 `json:"evictions"`
	Refused     uint64                  `json:"refused"` // requests that did not fit
	Hits        uint64                  `json:"hits"`
	Misses      uint64                  `json:"misses"` // lookups of entries that were not there
}

// StatusLimits are the configured limits; 0 is none.
type StatusLimits struct {
	MaxBytes   uint64  `json:"max_bytes"`
	MaxEntries int     `json:"max_entries"`
	TTLS       float64 `json:"ttl_s"` // seconds
}

// StatusBytes are totals. Pinned is part of Cached. Shared is how much more the entries would take if each had all of its
// arenas for itself.
type StatusBytes struct {
	Cached   uint64 `json:"cached"`
	Staging  uint64 `json:"staging"`
	Draining uint64 `json:"draining"`
	Pinned   uint64 `json:"pinned"`
	Shared   uint64 `json:"shared"`
}

// StatusFills count since the start, except for Staging.
type StatusFills struct {
	Started   uint64 `json:"started"`
	Committed uint64 `json:"committed"`
	Failed    uint64 `json:"failed"`
	Staging   int    `json:"staging"` // under way now

	// Of the committed ones: their sizes, and what the uncached loads took, in seconds.
	Bytes uint64  `json:"bytes"`
	LoadS float64 `json:"load_s"`
}

// StatusHugePages says whether new arenas get huge pages and how many published ones have them.
type StatusHugePages struct {
	feature
	Arenas     int `json:"arenas"`
	HugeArenas int `json:"huge_arenas"`
}

// StatusPressure says whether memory pressure evicts idle entries, and how often there was some.
type StatusPressure struct {
	feature
	Events uint64 `json:"events"`
}

func (t *tree) status() Status {
	s := t.store.Stats()
	return Status{
		Version: t.version, Mount: t.mountedAt, PID: os.Getpid(), PIDSpace: pidSpace(), UID: t.owner.UID,
		UptimeS:     time.Since(t.started).Seconds(),
		Limits:      StatusLimits{s.MaxBytes, s.MaxEntries, s.TTL.Seconds()},
		Bytes:       StatusBytes{s.CachedBytes, s.StagingBytes, s.DrainingBytes, s.PinnedBytes, s.SharedBytes},
		Entries:     s.Entries,
		Leases:      s.Leases,
		Passthrough: t.passthrough,
		FDPassing:   t.fdPassing,
		HugePages:   StatusHugePages{t.hugePages, s.Arenas, s.HugeArenas},
		Pressure:    StatusPressure{t.pressure, s.Counters.PressureEvents},
		Fills: StatusFills{
			s.Counters.FillsStarted, s.Counters.FillsCommitted, s.Counters.FillsFailed, s.Stagings,
			s.Counters.FilledBytes, s.Counters.FillSeconds,
		},
		Evictions: s.Counters.Evictions,
		Refused:   s.Counters.Refused,
		Hits:      s.Counters.Hits,
		Misses:    t.misses.Load(),
	}
}

func (t *tree) statusJSON() ([]byte, error) {
	out, err := json.MarshalIndent(t.status(), "", "  ")
	return append(out, '\n'), err
}

// ReadStatus reads status.json of a mount; a plain folder has none.
func ReadStatus(dir string) (Status, error) {
	var s Status
	text, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("status.json of %s: %w", dir, err)
	}
	return s, nil
}

// pidSpace is the number of this process's PID namespace.
func pidSpace() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return st.Ino
}

// LocalPID is the daemon's process for who reads the status, or 0 when that is in another PID namespace: the number is
// somebody else's there.
func (s Status) LocalPID() int {
	if s.PIDSpace != pidSpace() {
		return 0
	}
	return s.PID
}
