package schema

import (
	"regexp"
	"strings"
)

var (
	idPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	arenaPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)
)

const arenaSuffix = ".safetensors"

// ValidID says whether s can name an entry.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// ValidArenaName says whether s can name an arena.
func ValidArenaName(s string) bool {
	return strings.HasSuffix(s, arenaSuffix) && arenaPattern.MatchString(s)
}
