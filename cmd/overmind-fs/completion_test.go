package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// shellScripts make a real shell load its script, and complete a line of words, of which the last one is what was typed
// so far.
var shellScripts = map[string]struct {
	load     string
	complete func(words []string) string
}{
	"bash": {"source <(overmind-fs completion bash)", func(words []string) string {
		words = strings.Split(strings.ReplaceAll(strings.Join(words, " "), "=", " = "), " ") // as bash does
		return fmt.Sprintf("COMP_WORDS=(%s) COMP_CWORD=%d; _overmind_fs; echo ${COMPREPLY[@]}", quoted(words), len(words)-1)
	}},
	"fish": {"overmind-fs completion fish | source", func(words []string) string {
		return fmt.Sprintf("echo (complete -C '%s')", strings.Join(words, " "))
	}},
	// compadd works inside of a completion only, which needs a terminal; this one shows what it would offer.
	"zsh": {`compdef() { : }; source <(overmind-fs completion zsh)
compadd() { shift; for w in "$@"; do [[ $w == "$PREFIX"* ]] && offered+=("$w"); done }
_files() { : }`, func(words []string) string {
		return fmt.Sprintf("words=(%s); CURRENT=%d; PREFIX=${words[-1]}; offered=(); _overmind-fs; echo $offered", quoted(words), len(words))
	}},
}

func quoted(words []string) string {
	var out []string
	for _, w := range words {
		out = append(out, "'"+w+"'")
	}
	return strings.Join(out, " ")
}

func TestCompletion(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	for _, id := range []string{"tiny-a", "tiny-b", "other"} {
		fill(t, d.dir, id)
	}
	t.Setenv(rootEnv, d.dir)
	self, err := os.Executable()
	must(t, err)
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "overmind-fs"), fmt.Appendf(nil, "#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", runEnv, self), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	lines := []struct{ line, want string }{
		{"overmind-fs st", "status"},
		{"overmind-fs show ", "other tiny-a tiny-b"},
		{"overmind-fs evict ti", "tiny-a tiny-b"},
		{"overmind-fs pin tiny-a o", "other"},
		{"overmind-fs unpin --root /nope ", ""},
		{"overmind-fs --root " + d.dir + " du ti", "tiny-a tiny-b"},
		{"overmind-fs du --root=" + d.dir + " ti", "tiny-a tiny-b"},
		{"overmind-fs show --json o", "other"},
		{"overmind-fs evict --ol", "--older-than"},
		{"overmind-fs ls --re", "--reverse"},
		{"overmind-fs completion z", "zsh"},
	}
	for shell, scripts := range shellScripts {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("%s is not installed", shell)
			}
			script := scripts.load + "\n"
			for _, l := range lines {
				script += scripts.complete(strings.Split(l.line, " ")) + "\n"
			}
			out, err := exec.Command(shell, "-c", script).Output()
			must(t, err)
			answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(answers) != len(lines) {
				t.Fatalf("%d answers to %d lines: %q", len(answers), len(lines), out)
			}
			for i, l := range lines {
				got := strings.Fields(answers[i])
				slices.Sort(got)
				if strings.Join(got, " ") != l.want {
					t.Errorf("%q: %q, want %s", l.line, got, l.want)
				}
			}
		})
	}
}

// Every command and flag is in the manual, which does not depend on who prints it.
func TestManual(t *testing.T) {
	t.Setenv(rootEnv, "/somewhere/private")
	page := wantRun(t, exitOK, ".TH overmind-fs 1", "man")
	plain := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "").Replace(page)
	app := newApp()
	for _, c := range app.Commands {
		if !strings.Contains(plain, ".SH "+c.Name) || c.Usage == "" {
			t.Errorf("%s is not in the manual", c.Name)
		}
		for _, f := range c.Flags {
			if text := f.(cli.DocGenerationFlag).GetUsage(); text == "" || !strings.Contains(plain, "--"+f.Names()[0]) {
				t.Errorf("%s --%s is not in the manual", c.Name, f.Names()[0])
			}
		}
	}
	for _, want := range []string{"4: the daemon of the mount is dead", "overmind-fs evict [options] ID", "An ID may be shortened"} {
		if !strings.Contains(plain, want) {
			t.Errorf("%q is not in the manual", want)
		}
	}
	if strings.Contains(page, "private") {
		t.Error("the manual has a value of the environment in it")
	}
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("man is not installed")
	}
	cmd := exec.Command("man", "--warnings", "-l", "-")
	cmd.Stdin = strings.NewReader(page)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "Exit codes") {
		t.Errorf("man: %v\n%s", err, complaints.String())
	}
}
