package fs

import (
	"os"
	"slices"
	"strings"
)

// MountPoints lists where this process sees overmind file systems, each place once.
func MountPoints() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, FSType+" ") {
			continue
		}
		if where := unescape(fields[4]); !slices.Contains(found, where) {
			found = append(found, where)
		}
	}
	return found, nil
}
