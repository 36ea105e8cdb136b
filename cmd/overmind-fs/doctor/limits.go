package doctor

import (
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

type limit struct{ soft, hard uint64 }

var columns = regexp.MustCompile(` {2,}`)

// limits reads the limits of a process, by their names in /proc; what cannot be read is missing.
func (m Machine) limits(process string) map[string]limit {
	out := map[string]limit{}
	for line := range strings.Lines(m.read(filepath.Join("proc", process, "limits"))) {
		// Max open files            20000                20000                files
		if f := columns.Split(strings.TrimSpace(line), -1); len(f) >= 3 {
			out[f[0]] = limit{limitValue(f[1]), limitValue(f[2])}
		}
	}
	return out
}

func limitValue(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return math.MaxUint64 // unlimited
	}
	return n
}
