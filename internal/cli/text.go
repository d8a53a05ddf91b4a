package cli

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// wide are the characters that take two cells of a terminal: those of East Asia, and pictures.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1100, 0x115f, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0xa4cf, 1}, {0xa960, 0xa97c, 1}, {0xac00, 0xd7a3, 1},
		{0xf900, 0xfaff, 1}, {0xfe10, 0xfe19, 1}, {0xfe30, 0xfe6b, 1}, {0xff01, 0xff60, 1}, {0xffe0, 0xffe6, 1},
	},
	R32: []unicode.Range32{{0x16fe0, 0x18d08, 1}, {0x1aff0, 0x1b2fb, 1}, {0x1f300, 0x1faff, 1}, {0x20000, 0x3fffd, 1}},
}

// cellsOf returns how many cells of a terminal a character takes.
func cellsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me): // it is drawn over the one before
		return 0
	case unicode.Is(wide, r):
		return 2
	default:
		return 1
	}
}

// Cells returns how many cells of a terminal a text takes. Those of Paint's sequences are none.
func Cells(text string) (n int) {
	for _, r := range Bare(text) {
		n += cellsOf(r)
	}
	return n
}

// Cut shortens a text to a width in cells. One that is cut ends in tail, and keeps its tones.
func Cut(text string, width int, tail string) string {
	if Cells(text) <= width {
		return text
	}
	room := width - Cells(tail)
	if room < 0 {
		return ""
	}
	var b strings.Builder
	for cut := false; text != ""; {
		if s := sequence(text); s != "" {
			b.WriteString(s)
			text = text[len(s):]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		room -= cellsOf(r)
		switch {
		case room >= 0:
			b.WriteString(text[:n])
		case !cut:
			b.WriteString(tail)
			cut = true
		}
		text = text[n:]
	}
	return b.String()
}

// sequence returns Paint's sequence that a text begins with, "" if there is none.
func sequence(text string) string {
	if !strings.HasPrefix(text, escape) {
		return ""
	}
	return text[:strings.IndexByte(text, 'm')+1]
}
