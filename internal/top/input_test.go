package top

import (
	"slices"
	"testing"
)

// All that terminals send for the keys, whole and in two parts.
func TestInput(t *testing.T) {
	esc := key{name: "esc"}
	named := func(names ...string) (all []any) {
		for _, name := range names {
			all = append(all, key{name: name})
		}
		return all
	}
	for text, want := range map[string][]any{
		"q":                             {key{"q", "q"}},
		"λ漢":                            {key{"λ", "λ"}, key{"漢", "漢"}},
		" \t\r\x7f\b":                   append([]any{key{"space", " "}}, named("tab", "enter", "backspace", "backspace")...),
		"\x03\x15\x01":                  append(named("ctrl+c", "ctrl+u"), nil),
		"\x1b[A\x1bOB\x1b[Z":            named("up", "down", "shift+tab"),
		"\x1b[5~\x1b[6~\x1b[1~\x1b[4~":  named("pgup", "pgdown", "home", "end"),
		"\x1b[H\x1bOF":                  named("home", "end"),
		"\x1b":                          {esc},
		"\x1b\x1b[B":                    {esc, key{name: "down"}},
		"\x1bq":                         {esc, key{"q", "q"}},
		"\x1b[1;5A\x1b[15~x":            {nil, nil, key{"x", "x"}},
		"\x1b[200~a\rq\x1b[A\x1b[201~x": {pasted("a\rq\x1b[A"), key{"x", "x"}},
		"\x1b[200~never ends":           {pasted("never ends")},
		"\xff":                          {key{"\ufffd", "\ufffd"}},
	} {
		for at := range len(text) {
			var got []any
			in := input(text[:at])
			read := func(last bool) {
				for m, ok := in.next(last); ok; m, ok = in.next(last) {
					got = append(got, m)
				}
			}
			read(false)
			in = append(in, text[at:]...)
			read(false)
			read(true)
			if !slices.Equal(got, want) {
				t.Errorf("%q and %q: %v, want %v", text[:at], text[at:], got, want)
			}
			if len(in) > 0 {
				t.Errorf("%q: %q is left", text, in)
			}
		}
	}
}

// A text's lines are broken between words, else anywhere, and keep their indent.
func TestWrap(t *testing.T) {
	m := &Model{}
	for _, c := range []struct {
		text  string
		width int
		want  []string
	}{
		{"one two three\n", 7, []string{"one two", "three"}},
		{"one two three", 6, []string{"one", "two", "three"}},
		{"  indented words\n\nend", 10, []string{"  indented", "words", "", "end"}},
		{"abcdefgh", 3, []string{"abc", "def", "gh"}},
		{"  abcdefgh", 4, []string{"  ab", "cdef", "gh"}},
		{"漢字", 1, []string{"漢", "字"}},
	} {
		if m.width = c.width; !slices.Equal(m.wrap(c.text), c.want) {
			t.Errorf("%q in %d: %q, want %q", c.text, c.width, m.wrap(c.text), c.want)
		}
	}
}
