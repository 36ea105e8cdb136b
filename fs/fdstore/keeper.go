package fdstore

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// closeWait is how long Close waits for a service manager that does not read.
const closeWait = time.Second

// Keeper stores entries with the service manager. The messages go out in their order from a goroutine of its own, since
// the manager may be slow.
type Keeper struct {
	conn *net.UnixConn
	to   *net.UnixAddr
	max  int // descriptors that the manager keeps; 0: unknown
	log  *slog.Logger

	mu      sync.Mutex // guards what follows
	records map[uint64]*record
	used    int // descriptors stored
	queue   []message
	queued  *sync.Cond
	started bool
	closed  bool
	drained chan struct{}
}

var _ store.Keeper = (*Keeper)(nil)

// record is a stored entry.
type record struct {
	fd    int
	names []string // the record's own first
}

// message is a datagram to the manager.
type message struct {
	text string
	fd   int // closed when sent; or -1
}

// Open returns a keeper that sends, from Start on, to a notification socket ($NOTIFY_SOCKET). max is how many
// descriptors the manager keeps ($FDSTORE), 0 where that is not known.
func Open(socket string, max int, log *slog.Logger) (*Keeper, error) {
	// Not connected, since net sends no descriptors over a connected one; without a name it gets one of the kernel.
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notification socket: %w", err)
	}
	k := &Keeper{
		conn: conn, to: &net.UnixAddr{Name: socket, Net: "unixgram"}, max: max, log: log,
		records: map[uint64]*record{}, drained: make(chan struct{}),
	}
	k.queued = sync.NewCond(&k.mu)
	return k, nil
}

// Start begins to send, once this is the process whose entries are to be kept.
func (k *Keeper) Start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started = true
	go k.send()
}

// Close waits a moment until what is queued has been sent. What is stored stays.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	k.queued.Broadcast()
	started := k.started
	k.mu.Unlock()
	if started {
		select {
		case <-k.drained:
		case <-time.After(closeWait):
		}
	}
	_ = k.conn.Close()
	if started {
		<-k.drained // what is left fails at once
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.queue {
		closeFD(m.fd)
	}
	k.queue = nil
	for _, r := range k.records {
		_ = unix.Close(r.fd)
	}
	clear(k.records)
}

func (k *Keeper) send() {
	defer close(k.drained)
	for {
		k.mu.Lock()
		for len(k.queue) == 0 && !k.closed {
			k.queued.Wait()
		}
		if len(k.queue) == 0 {
			k.mu.Unlock()
			return
		}
		m := k.queue[0]
		k.queue = k.queue[1:]
		k.mu.Unlock()
		var rights []byte
		if m.fd >= 0 {
			rights = unix.UnixRights(m.fd)
		}
		if _, _, err := k.conn.WriteMsgUnix([]byte(m.text), rights, k.to); err != nil {
			k.log.Warn("the service manager was not reached", "message", m.text, "error", err)
		}
		closeFD(m.fd)
	}
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// enqueue sends a message later; the descriptor is then closed. The caller has k.mu.
func (k *Keeper) enqueue(text string, fd int) {
	k.queue = append(k.queue, message{text, fd})
	k.queued.Broadcast()
}

func (k *Keeper) store(name string, fd int) {
	k.enqueue("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fd)
}

func (k *Keeper) remove(names []string) {
	for _, name := range names {
		k.enqueue("FDSTOREREMOVE=1\nFDNAME="+name, -1)
	}
}

// Keeps says whether an entry is stored; after Restore those are that came from there.
func (k *Keeper) Keeps(serial uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.records[serial] != nil
}

// Keep stores an entry.
func (k *Keeper) Keep(r schema.EntryRecord, files []store.Passed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(files) + 1
	if k.max > 0 && k.used+n > k.max {
		k.log.Warn("the descriptor store is full: after a crash this entry is lost", "entry", r.ID,
			"descriptors", n, "used", k.used, "max", k.max)
		k.remove(names(r, recordsOf(files)))
		return
	}
	rec, dups, err := copies(r, files)
	if err != nil {
		k.lose(r, recordsOf(files), err)
		return
	}
	k.remove(rec.names[:1]) // that of a daemon that was replaced
	for i, f := range files {
		if f.Copy { // so is this; what is no copy is an open file that the manager has, and keeps once
			k.remove(rec.names[i+1 : i+2])
		}
	}
	for i, fd := range dups[1:] {
		k.store(rec.names[i+1], fd)
	}
	k.store(rec.names[0], dups[0])
	k.records[r.Serial] = rec
	k.used += n
}

// Lose removes what may be stored of an entry, as by a daemon that was replaced.
func (k *Keeper) Lose(r schema.EntryRecord, files []schema.FileRecord, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lose(r, files, why)
}

func (k *Keeper) lose(r schema.EntryRecord, files []schema.FileRecord, why error) {
	k.log.Warn("not in the descriptor store: after a crash this entry is lost", "entry", r.ID, "error", why)
	k.remove(names(r, files))
}

// names are those under which an entry is stored, its record's first.
func names(r schema.EntryRecord, files []schema.FileRecord) []string {
	out := []string{recordName(r.Serial)}
	for _, f := range files {
		out = append(out, fileName(f))
	}
	return out
}

func recordsOf(files []store.Passed) []schema.FileRecord {
	var out []schema.FileRecord
	for _, f := range files {
		out = append(out, f.FileRecord)
	}
	return out
}

// copies makes a record, and duplicates of it and of all files.
func copies(r schema.EntryRecord, files []store.Passed) (rec *record, dups []int, err error) {
	rec = &record{names: names(r, recordsOf(files))}
	if rec.fd, err = newRecord(r, files); err != nil {
		return nil, nil, err
	}
	originals := []int{rec.fd}
	for _, f := range files {
		originals = append(originals, f.FD)
	}
	for _, fd := range originals {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, fd := range append(dups, rec.fd) {
				_ = unix.Close(fd)
			}
			return nil, nil, fmt.Errorf("dup: %w", err)
		}
		dups = append(dups, dup)
	}
	return rec, dups, nil
}

// Update writes into the record of an entry, which the manager has too.
func (k *Keeper) Update(r schema.EntryRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	rec := k.records[r.Serial]
	if rec == nil {
		return
	}
	if _, err := unix.Pwrite(rec.fd, encodeState(r), 0); err != nil {
		k.log.Warn("the record of an entry was not updated", "entry", r.ID, "error", err)
	}
}

// Forget removes an entry from the store.
func (k *Keeper) Forget(serial uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	rec := k.records[serial]
	if rec == nil {
		return
	}
	k.remove(rec.names)
	delete(k.records, serial)
	k.used -= len(rec.names)
	_ = unix.Close(rec.fd)
}
