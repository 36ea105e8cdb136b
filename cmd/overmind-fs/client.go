package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/schema"
)

// rootFlag says which cache the client commands work on.
func rootFlag() cli.Flag {
	return &cli.StringFlag{Name: "root", Aliases: []string{"r"}, EnvVars: []string{"OVERMIND_ROOT"}, Usage: "the cache: a mount or a folder, `DIR`"}
}

// cacheRoot returns the folder given by --root or $OVERMIND_ROOT.
func cacheRoot(c *cli.Context) (string, error) {
	root := c.String("root")
	if root == "" {
		return "", usageError{"which cache? give --root DIR or set OVERMIND_ROOT"}
	}
	if _, err := os.Stat(pipelinesOf(root)); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("%s: %w", root, errNoMount)
		}
		return "", fmt.Errorf("%s: %w", root, err)
	}
	return root, nil
}

func pipelinesOf(root string) string { return filepath.Join(root, "pipelines") }

// entry is what a client can see of one entry.
type entry struct {
	id       string
	path     string
	uid      uint32
	manifest *schema.Manifest

	// From the extended attributes; a plain folder has none.
	live      bool
	pinned    bool
	hits      uint64
	leases    int
	leasePIDs string
	bytes     uint64
	lastUse   time.Time
}

// entryIDs lists the entries.
func entryIDs(root string) ([]string, error) {
	names, err := os.ReadDir(pipelinesOf(root))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range names {
		if n.IsDir() {
			ids = append(ids, n.Name())
		}
	}
	return ids, nil
}

// findEntry completes a prefix that fits one entry only.
func findEntry(root, prefix string) (string, error) {
	ids, err := entryIDs(root)
	if err != nil {
		return "", err
	}
	var fits []string
	for _, id := range ids {
		if id == prefix {
			return id, nil
		}
		if prefix != "" && strings.HasPrefix(id, prefix) {
			fits = append(fits, id)
		}
	}
	switch len(fits) {
	case 0:
		return "", fmt.Errorf("%w: %s", errNoEntry, prefix)
	case 1:
		return fits[0], nil
	default:
		return "", fmt.Errorf("%w: %s fits %s", errNoEntry, prefix, strings.Join(fits, ", "))
	}
}

// readEntry reads the manifest and the attributes of an entry.
func readEntry(root, id string) (*entry, error) {
	e := &entry{id: id, path: filepath.Join(pipelinesOf(root), id)}
	var st unix.Stat_t
	if err := unix.Stat(e.path, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	e.uid = st.Uid
	buf, err := os.ReadFile(filepath.Join(e.path, "manifest"))
	if err != nil {
		return nil, err
	}
	if e.manifest, err = schema.Decode(buf); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	e.bytes = e.manifest.DataBytes() + e.manifest.StructureNbytes + uint64(len(buf))
	hits, err := attribute(e.path, overmindfs.AttrHits)
	if err != nil {
		return e, nil // a plain folder
	}
	e.live = true
	e.hits, _ = strconv.ParseUint(hits, 10, 64)
	pinned, _ := attribute(e.path, overmindfs.AttrPinned)
	e.pinned = pinned == "1"
	leases, _ := attribute(e.path, overmindfs.AttrLeases)
	e.leases, _ = strconv.Atoi(leases)
	e.leasePIDs, _ = attribute(e.path, overmindfs.AttrLeasePIDs)
	used, _ := attribute(e.path, overmindfs.AttrLastUse)
	seconds, _ := strconv.ParseInt(used, 10, 64)
	e.lastUse = time.Unix(seconds, 0)
	return e, nil
}

// attribute reads an extended attribute.
func attribute(path, name string) (string, error) {
	size, err := unix.Getxattr(path, name, nil)
	if err != nil || size == 0 {
		return "", err
	}
	buf := make([]byte, size+64) // it may have grown
	if size, err = unix.Getxattr(path, name, buf); err != nil {
		return "", err
	}
	return string(buf[:size]), nil
}

// readStatus reads status.json of a mount.
func readStatus(root string) (overmindfs.Status, error) {
	var s overmindfs.Status
	text, err := os.ReadFile(filepath.Join(root, "status.json"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return s, fmt.Errorf("%s: %w (a plain folder has no status)", root, errNoMount)
		}
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

func printJSON(v any) error {
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(out))
	return err
}
