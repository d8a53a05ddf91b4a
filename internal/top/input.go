package top

import (
	"bytes"
	"unicode/utf8"
)

// key is a key that is pressed: its name, and the text that it types, if any.
type key struct{ name, text string }

// pasted is text that comes by itself from the terminal.
type pasted string

// Keys that terminals send as one byte, and as a sequence behind "\x1b[" or "\x1bO".
var (
	byByte = map[byte]key{
		0x03: {"ctrl+c", ""}, '\b': {"backspace", ""}, '\t': {"tab", ""}, '\r': {"enter", ""}, 0x15: {"ctrl+u", ""},
		' ': {"space", " "}, 0x7f: {"backspace", ""},
	}
	bySequence = map[string]string{
		"A": "up", "B": "down", "H": "home", "F": "end", "Z": "shift+tab",
		"1~": "home", "4~": "end", "5~": "pgup", "6~": "pgdown", "7~": "home", "8~": "end",
	}
)

const (
	pasteBegins = "\x1b[200~"
	pasteEnds   = "\x1b[201~"
)

// input is what was typed and is no whole key yet.
type input []byte

// next takes the next key or pasted text off, nil where it means nothing here. ok is false if
// more has to come for a whole one. With last nothing more comes: what begins like a sequence
// is the escape key.
func (in *input) next(last bool) (message any, ok bool) {
	b := *in
	take := func(n int, message any) (any, bool) {
		*in = b[n:]
		return message, true
	}
	switch {
	case len(b) == 0:
		return nil, false
	case bytes.HasPrefix(b, []byte(pasteBegins)):
		text, _, whole := bytes.Cut(b[len(pasteBegins):], []byte(pasteEnds))
		if !whole && !last {
			return nil, false
		}
		return take(min(len(b), len(pasteBegins)+len(text)+len(pasteEnds)), pasted(text))
	case b[0] == '\x1b':
		n := sequenceLen(b)
		switch {
		case n == 0 && !last:
			return nil, false
		case n <= 1:
			return take(1, key{name: "esc"})
		case bySequence[string(b[2:n])] == "":
			return take(n, nil)
		}
		return take(n, key{name: bySequence[string(b[2:n])]})
	case b[0] < ' ' || b[0] == ' ' || b[0] == 0x7f:
		if k, known := byByte[b[0]]; known {
			return take(1, k)
		}
		return take(1, nil)
	case !utf8.FullRune(b) && !last:
		return nil, false
	default:
		r, n := utf8.DecodeRune(b)
		return take(n, key{string(r), string(r)})
	}
}

// sequenceLen returns how long the sequence is that b, from an escape character on, begins
// with: 1 for that character alone, 0 if the rest has not come.
func sequenceLen(b []byte) int {
	switch {
	case len(b) == 1:
		return 0
	case b[1] != '[' && b[1] != 'O':
		return 1
	}
	for n := 2; n < len(b); n++ {
		if b[n] >= '@' && b[n] <= '~' {
			return n + 1
		}
	}
	return 0
}
