package main

import (
	"strings"
	"unicode"
)

// printable takes the control characters out of a text that the filler of an entry chose, who may be another user: a
// terminal would obey them.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
