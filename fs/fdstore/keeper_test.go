package fdstore

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"overmind-fs/fs/store"
	"overmind-fs/schema"
)

// What a daemon that was replaced has stored of an entry goes when this one cannot keep the entry: nobody would remove it
// later, and its memory would stay.
func TestWhatIsNotKeptLeavesTheStore(t *testing.T) {
	r := schema.EntryRecord{Serial: 7, ID: "a"}
	files := []store.Passed{
		{FileRecord: schema.FileRecord{Entry: 7, Serial: 8, Name: "manifest"}, FD: -1},
		{FileRecord: schema.FileRecord{Entry: 7, Serial: 9, Name: "model.safetensors", Arena: true}, FD: -1},
	}
	for name, c := range map[string]struct {
		max int
		do  func(*Keeper)
	}{
		"no descriptors": {0, func(k *Keeper) {
			k.Lose(r, []schema.FileRecord{files[0].FileRecord, files[1].FileRecord}, errors.New("too many open files"))
		}},
		"bad descriptors": {0, func(k *Keeper) { k.Keep(r, files) }},
		"full":            {2, func(k *Keeper) { k.Keep(r, files) }},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = manager.Close() }()
			k, err := Open(socket, c.max, slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			k.Start()
			c.do(k)
			for _, want := range []string{"overmind-7", "overmind-7-8", "overmind-7-9"} {
				buffer := make([]byte, 1024)
				_ = manager.SetReadDeadline(time.Now().Add(30 * time.Second))
				n, err := manager.Read(buffer)
				if err != nil {
					t.Fatalf("%s was not removed: %v", want, err)
				}
				if got := string(buffer[:n]); got != "FDSTOREREMOVE=1\nFDNAME="+want {
					t.Errorf("%q, want %s removed", strings.ReplaceAll(got, "\n", " "), want)
				}
			}
			if k.Keeps(7) {
				t.Error("it is kept")
			}
		})
	}
}
