// Package plain makes names of others safe to show: containers choose them.
package plain

import (
	"strings"
	"unicode"
)

// Text replaces what a terminal, a log or a page would obey or not show (control and
// formatting characters, what is no UTF-8) by question marks.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}
