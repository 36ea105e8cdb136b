package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	overmindfs "overmind-fs/fs"
)

// metricsURL waits until the log says where the metrics are.
func metricsURL(t *testing.T, log string) string {
	t.Helper()
	said := regexp.MustCompile(`msg=mounted .*metrics=(\S+)`)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(log)
		must(t, err)
		if m := said.FindSubmatch(text); m != nil {
			return fmt.Sprintf("http://%s/metrics", m[1])
		}
	}
	t.Fatal("the log does not say where the metrics are")
	return ""
}

func TestMetricsOverHTTP(t *testing.T) {
	log := logFile(t)
	d := startDaemon(t, t.TempDir(), "--metrics-addr", "127.0.0.1:0", "--log-file", log)
	fill(t, d.dir, "a")
	url := metricsURL(t, log)
	get := func(url string) (int, string) {
		t.Helper()
		r, err := http.Get(url)
		must(t, err)
		defer func() { _ = r.Body.Close() }()
		text, err := io.ReadAll(r.Body)
		must(t, err)
		return r.StatusCode, string(text)
	}
	code, text := get(url)
	for _, line := range []string{
		`overmind_fills_total{result="committed"} 1`, `overmind_evictions_total{reason="pressure"} 0`, "overmind_entries 1",
		"overmind_fill_seconds_total 2.5", `overmind_bytes{state="draining"} 0`, "process_open_fds ", "go_goroutines ",
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("no line %q", line)
		}
	}
	if code != http.StatusOK || t.Failed() {
		t.Errorf("status %d\n%s", code, text)
	}
	if code, _ := get(strings.TrimSuffix(url, "metrics")); code != http.StatusNotFound {
		t.Errorf("another path: status %d", code)
	}

	// Neither a connection that is kept nor one that asks nothing holds up the end.
	idle, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics"))
	must(t, err)
	defer func() { _ = idle.Close() }()
	must(t, d.cmd.Process.Signal(unix.SIGTERM))
	d.wantExit(t, exitOK)
}

func TestMetricsPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	addr, dir := l.Addr().String(), t.TempDir()
	for _, args := range [][]string{{"mount"}, {"mount", "--background", "--log-file", logFile(t)}} {
		code, _, errOut := overmind(t, append(args, "--metrics-addr", addr, dir)...)
		if code != exitFailure || !strings.Contains(errOut, addr) || !strings.Contains(errOut, "--metrics-addr") {
			t.Errorf("%v: exit %d, %s", args, code, errOut)
		}
	}
	if kind, _ := overmindfs.MountedType(dir); kind != "" {
		t.Error("it was mounted")
	}
	code, _, errOut := overmind(t, "mount", "--metrics-addr", "nonsense", dir)
	if code != exitFailure || !strings.Contains(errOut, "nonsense") {
		t.Errorf("exit %d, %s", code, errOut)
	}
}
