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

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
	"overmind-fs/schema"
)

// pipelinesOf is the folder of the entries.
func pipelinesOf(root string) string { return filepath.Join(root, "pipelines") }

// entry is what a client can see of one entry.
type entry struct {
	id       string
	path     string
	uid      uint32
	manifest *schema.Manifest
	live     bool // on a mount; a plain folder has no attributes but the bytes
	attributes
}

// attributes are the extended attributes of an entry.
type attributes struct {
	bytes     uint64 // of all its files
	shared    uint64 // part of bytes that other entries have too
	pinned    bool
	hits      uint64
	leases    int
	leasePIDs []int
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
		if n.IsDir() && schema.ValidID(n.Name()) {
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
		return "", fmt.Errorf("%w: %q", errNoEntry, prefix)
	case 1:
		return fits[0], nil
	default:
		return "", fmt.Errorf("%w: %q fits %s", errSeveralEntries, prefix, strings.Join(fits, ", "))
	}
}

// readEntry reads the manifest and the attributes of an entry.
func readEntry(root, id string) (*entry, error) {
	e := &entry{id: id, path: filepath.Join(pipelinesOf(root), id)}
	var st unix.Stat_t
	if err := unix.Stat(e.path, &st); err != nil {
		return nil, gone(id, err)
	}
	e.uid = st.Uid
	buf, err := os.ReadFile(filepath.Join(e.path, "manifest"))
	if err != nil {
		return nil, gone(id, err)
	}
	if e.manifest, err = schema.Decode(buf); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	e.bytes = e.manifest.DataBytes() + e.manifest.StructureNbytes + uint64(len(buf))
	if a, err := readAttributes(e.path); err == nil {
		e.attributes, e.live = a, true
		return e, nil
	}
	for _, a := range e.manifest.Arenas { // on a plain folder an arena is a hard link
		if err := unix.Lstat(filepath.Join(e.path, "tensors", a.Name), &st); err == nil && st.Nlink > 1 {
			e.shared += a.Nbytes
		}
	}
	return e, nil
}

// gone makes errNoEntry of the errors that tell of an entry that has just been removed.
func gone(id string, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %q: %w", errNoEntry, id, err)
	}
	return fmt.Errorf("%s: %w", id, err)
}

// readAttributes reads the attributes of an entry of a mount.
func readAttributes(path string) (attributes, error) {
	var a attributes
	texts := map[string]string{}
	for _, name := range []string{
		overmindfs.AttrPinned, overmindfs.AttrHits, overmindfs.AttrLeases, overmindfs.AttrLeasePIDs, overmindfs.AttrLastUse,
		overmindfs.AttrBytes,
	} {
		text, err := attribute(path, name)
		if err != nil {
			return a, fmt.Errorf("%s of %s: %w", name, path, err)
		}
		texts[name] = text
	}
	a.pinned = texts[overmindfs.AttrPinned] == "1"
	a.bytes, _ = strconv.ParseUint(texts[overmindfs.AttrBytes], 10, 64)
	if text, err := attribute(path, overmindfs.AttrShared); err == nil { // a daemon from before there was sharing has none
		a.shared, _ = strconv.ParseUint(text, 10, 64)
	}
	a.hits, _ = strconv.ParseUint(texts[overmindfs.AttrHits], 10, 64)
	a.leases, _ = strconv.Atoi(texts[overmindfs.AttrLeases])
	for _, word := range strings.Split(texts[overmindfs.AttrLeasePIDs], ",") {
		if pid, err := strconv.Atoi(word); err == nil {
			a.leasePIDs = append(a.leasePIDs, pid)
		}
	}
	seconds, _ := strconv.ParseInt(texts[overmindfs.AttrLastUse], 10, 64)
	a.lastUse = time.Unix(seconds, 0)
	return a, nil
}

// leasedBy says how many leases there are, and whose where that is known: processes in other PID namespaces are not.
func (a attributes) leasedBy() string {
	if len(a.leasePIDs) == 0 {
		return strconv.Itoa(a.leases)
	}
	pids := make([]string, len(a.leasePIDs))
	for i, pid := range a.leasePIDs {
		pids[i] = strconv.Itoa(pid)
	}
	return fmt.Sprintf("%d (pid %s)", a.leases, strings.Join(pids, ", "))
}

// readEntries reads all entries and leaves out those that go in the meantime.
func readEntries(root string) ([]*entry, error) {
	if all, err := listedEntries(root); !errors.Is(err, os.ErrNotExist) {
		return all, err
	}
	ids, err := entryIDs(root)
	if err != nil {
		return nil, err
	}
	var entries []*entry
	for _, id := range ids {
		e, err := readEntry(root, id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "overmind-fs:", err)
			continue
		}
		entries = append(entries, e)
	}
	return entries, nil
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

func printJSON(v any) error {
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(out))
	return err
}
