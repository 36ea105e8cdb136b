package schema

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	idPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	ownerPattern = regexp.MustCompile(`\.u(0|[1-9][0-9]{0,9})$`)
	arenaPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)
)

const arenaSuffix = ".safetensors"

// ValidID says whether s can name an entry.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// OwnerOf returns the user whose id it is: the one that it ends in, as ".u1000", or else owner.
func OwnerOf(id string, owner uint32) uint32 {
	found := ownerPattern.FindStringSubmatch(id)
	if found == nil {
		return owner
	}
	uid, err := strconv.ParseUint(found[1], 10, 32)
	if err != nil {
		return owner // more than a uid can be
	}
	return uint32(uid)
}

// ValidArenaName says whether s can name an arena.
func ValidArenaName(s string) bool {
	return strings.HasSuffix(s, arenaSuffix) && arenaPattern.MatchString(s)
}
