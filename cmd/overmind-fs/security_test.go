package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every attack in docs/security.md names a test, and the tests are there.
func TestAttacksNameTheirTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	must(t, err)
	_, tried, found := strings.Cut(string(text), "\n| attack |")
	if !found {
		t.Fatal("no table of attacks")
	}
	table, _, _ := strings.Cut(tried, "\n\n")
	rows := strings.Split(table, "\n")[2:]
	defined := definedTests(t)
	name := regexp.MustCompile("`([Tt]est\\w+)`")
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		names := name.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 3 || len(names) == 0 {
			t.Errorf("no test in %q", row)
		}
		for _, n := range names {
			if !defined[n[1]] {
				t.Errorf("there is no %s", n[1])
			}
		}
	}
	if len(rows) < 20 {
		t.Errorf("only %d attacks", len(rows))
	}
}

func definedTests(t *testing.T) map[string]bool {
	t.Helper()
	definition := regexp.MustCompile(`(?m)^(?:func|def) ([Tt]est\w+)\(`)
	defined := map[string]bool{}
	for _, root := range []string{"fs", "cmd", "schema", "integration/tests", "pyloader/tests"} {
		must(t, filepath.WalkDir(filepath.Join("../..", root), func(path string, _ fs.DirEntry, err error) error {
			isTest := strings.HasSuffix(path, "_test.go") || strings.HasPrefix(filepath.Base(path), "test_") && strings.HasSuffix(path, ".py")
			if err != nil || !isTest {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range definition.FindAllStringSubmatch(string(text), -1) {
				defined[match[1]] = true
			}
			return err
		}))
	}
	return defined
}
