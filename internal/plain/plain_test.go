package plain

import "testing"

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"web-1 λ": "web-1 λ", "": "",
		"a\x1b[2Jb\nc\x00": "a?[2Jb?c?",
		"a\u202eb\u200bc":  "a?b?c", // right-to-left override, zero-width space
		"a\xffb":           "a?b",
		"a\u0085b\u2028c":  "a?b?c", // next line, line separator
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
