package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"overmind-fs/fs/fstest"
	"overmind-fs/schema"
)

// sampleEntries differ in every column.
func sampleEntries() []*entry {
	now := time.Now()
	entryOf := func(id, class, name string, mib int, age, used, took time.Duration, hits uint64, pids ...int) *entry {
		return &entry{
			id: id, live: true,
			manifest: &schema.Manifest{
				ClassName: class, ModelName: name, CreatedNS: now.Add(-age).UnixNano(), FillSeconds: took.Seconds(),
			},
			attributes: attributes{
				bytes: uint64(mib) << 20, hits: hits, leases: len(pids), leasePIDs: pids, lastUse: now.Add(-used), pinned: id == "b",
			},
		}
	}
	return []*entry{
		entryOf("a", "x.Zebra", "m2", 5, time.Hour, time.Minute, 3*time.Second, 7),
		entryOf("b", "y.Ape", "m3", 9, 3*time.Hour, time.Second, time.Second, 2, 11),
		entryOf("c", "x.Bear", "m1", 7, 2*time.Hour, time.Hour, 2*time.Second, 9, 11, 12),
	}
}

func TestSortOrders(t *testing.T) {
	for name, want := range map[string]string{
		"id": "abc", "class": "bca", "model": "cab", "size": "bca", "age": "acb", "used": "bac", "hits": "cab",
		"leases": "cba", "pinned": "bac", "took": "acb",
	} {
		entries := sampleEntries()
		got := ""
		for _, e := range sorted(entries, orders[name], false) {
			got += e.id
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if len(orders) != 10 {
		t.Error("an order is not tested")
	}
	if reversed := sorted(sampleEntries(), orders["size"], true); reversed[0].id != "a" {
		t.Errorf("--reverse starts with %s", reversed[0].id)
	}
}

func TestListTable(t *testing.T) {
	entries := sampleEntries()
	entries[0].manifest.ModelName = "evil\x1b[2J\nname"
	entries = append(entries, &entry{id: "plain", manifest: &schema.Manifest{}})
	var out strings.Builder
	must(t, listTable(&out, entries))
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		`^ID +CLASS +MODEL +SIZE +AGE +USED +HITS +LEASES +PINNED +LOAD TOOK$`,
		`^a +Zebra +evil�\[2J�name +5.0 MiB +1 hour +1 minute ago +7 +0 +no +3s$`,
		`^b +Ape +m3 +9.0 MiB +3 hours +1 second ago +2 +1 \(pid 11\) +yes +1s$`,
		`^c +Bear .* 9 +2 \(pid 11, 12\) +no +2s$`,
		`^plain +- +- +0 B +.* - +- +- +- +0s$`,
		`^$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("line %d: %q, want %s", i, lines[i], want)
		}
	}
}

// A lease is shown with the process that has it, and both end with the process.
func TestLeasesAreShownWithTheirProcess(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	f := fill(t, d.dir, "a")
	c := startClientAs(t, openEnv, fstest.Arena(f.Entry()))
	pid := c.cmd.Process.Pid
	want := fmt.Sprintf("1 (pid %d)", pid)
	wantRun(t, exitOK, want, "ls")
	wantRun(t, exitOK, want, "show", "a")
	wantRun(t, exitOK, want, "top", "--once")
	var docs []entryDoc
	must(t, json.Unmarshal([]byte(wantRun(t, exitOK, "", "ls", "--json")), &docs))
	if len(docs) != 1 || *docs[0].Leases != 1 || len(*docs[0].LeasePIDs) != 1 || (*docs[0].LeasePIDs)[0] != pid {
		t.Errorf("%+v", docs)
	}
	c.wantSame(t)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) { // RELEASE comes after close
		a, err := readAttributes(f.Entry())
		must(t, err)
		if a.leases == 0 && a.leasePIDs == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %+v", a)
		}
	}
}

// pipeline is a manifest with a component, sources and versions, and with more tensors than show lists.
func pipeline(m *schema.Manifest) {
	half := uint64(m.Dims[0]) / 2
	m.Tensors = nil
	m.Dims = []int64{2, int64(half / 2), int64(half / 2), 1}
	m.Tensors = append(m.Tensors, schema.Tensor{Ndim: 2, Storage: 1})
	for i := range 2 * topTensors {
		m.Dims = append(m.Dims, int64(i+1), 1)
		m.Tensors = append(m.Tensors, schema.Tensor{Ndim: 1, Dims: uint32(len(m.Dims) - 2)})
	}
	// One that is not in the table.
	m.Storages = append(m.Storages, schema.Storage{Offset: 0, Nbytes: 64})
	m.StorageNames = append(m.StorageNames, "special")
	m.Sources = []schema.Source{{Path: "/models/weights.bin", Nbytes: 5 << 20}}
	m.Distributions = []schema.Distribution{{Name: "torch", Version: "9.9"}, {Name: "xformers"}}
	m.Listings = []schema.Listing{{Path: "/models", Digest: "abc"}}
	m.Modules = []schema.Module{{Name: "my.module", Path: "/src/my/module.py"}}
}

func TestShow(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	f := fstest.Fill{Root: d.dir, ID: "a", Size: 3 * mib, Mapped: true, Change: pipeline}
	must(t, f.Run())
	out := wantRun(t, exitOK, "", "show", "a")
	for _, want := range []string{
		`what made the key\n  path +/models/tiny\n`,
		`components\n  model +3.0 MiB\n`,
		`the 10 largest tensors of 22 \(all: --all\)\n  half/way +model +1.5 MiB +uint8 +\[2, 786432\] *\n` +
			`  special +model +64 B +storage *\n  all +model +20 B +uint8 +\[20\] *\n`,
		`package versions\n  torch +9.9\n  xformers +\(not installed\)\n`,
		`files that the load opened\n  /models/weights.bin +5.0 MiB +\d{4}-`,
		`folders that the load looked into, and variables\n  /models +abc\n`,
		`modules outside of packages\n  my.module +/src/my/module.py\n`,
		`load took +2.5s\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if all := wantRun(t, exitOK, "tensors by size", "show", "--all", "a"); strings.Count(all, "uint8") != 21 {
		t.Errorf("--all:\n%s", all)
	}
}

func TestDu(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	fill(t, d.dir, "small")
	big := fstest.Fill{Root: d.dir, ID: "big", Size: 5 * mib, Mapped: true}
	must(t, big.Run())
	under := fstest.Fill{Root: d.dir, ID: "under-way", Size: 2 * mib, Mapped: true}
	must(t, under.Stage())
	wantRun(t, exitOK, "", "pin", "small")

	var doc usage
	must(t, json.Unmarshal([]byte(wantRun(t, exitOK, "", "du", "--json")), &doc))
	if len(doc.Entries) != 2 || doc.Entries[0].ID != "big" || doc.Total != doc.Mount.Cached ||
		doc.Total != doc.Entries[0].Bytes+doc.Entries[1].Bytes {
		t.Errorf("%+v", doc)
	}
	for _, e := range doc.Entries {
		sum := uint64(0)
		for _, f := range e.Files {
			sum += f.Bytes
		}
		if sum != e.Bytes || len(e.Files) != 3 || e.Files[0].Name != "model" {
			t.Errorf("%+v", e)
		}
	}
	out := wantRun(t, exitOK, "", "du", "--all")
	for _, want := range []string{
		`(?m)^ +5.3 MiB  big$`, `(?m)^ +5.0 MiB    model$`, `(?m)^ +293 KiB    structure.pkl$`, `(?m)^ +8.6 MiB  in 2 entries$`,
		`(?m)^ +3.3 MiB  pinned`, `(?m)^ +2.3 MiB  in fills under way$`, `(?m)^ +0 B  draining`, `(?m)^ +11 MiB  in all$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	wantRun(t, exitOK, "in 1 entry\n", "du", "sm")
	wantRun(t, exitNotFound, "no such entry", "du", "nothing")

	// What a program holds of an evicted entry is counted as draining.
	c := startClientAs(t, openEnv, fstest.Arena(filepath.Join(d.dir, "pipelines", "big")))
	wantRun(t, exitOK, "held until its leases end: 1 (pid", "evict", "big")
	wantRun(t, exitOK, "5.0 MiB  draining", "du")
	c.wantSame(t)
}

// What entries share is in the size of each and once in the sums.
func TestSharedIsShown(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	t.Setenv(rootEnv, d.dir)
	a := fill(t, d.dir, "a")
	must(t, fstest.Fill{Root: d.dir, ID: "b", Size: a.Size, From: a.Entry()}.Run())
	wantRun(t, exitOK, "shared     3.0 MiB, stored once", "show", "a")
	wantRun(t, exitOK, "3.0 MiB more if no entries shared", "status")
	wantRun(t, exitOK, `"shared": 3145728`, "ls", "--json")
	out := wantRun(t, exitOK, "", "du")
	for _, want := range []string{
		`(?m)^ +3.3 MiB  a \(3.0 MiB shared\)$`, `(?m)^ +3.3 MiB  b \(3.0 MiB shared\)$`, `(?m)^ +6.6 MiB  in 2 entries$`,
		`(?m)^ +3.0 MiB  less`, `(?m)^ +3.6 MiB  in all$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	wantRun(t, exitOK, "2 evicted, 3.6 MiB freed", "evict", "--all")
}
