package cli

import "testing"

func TestCells(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "web-1": 5, "λ→…": 3, "漢字容器": 8, "한국": 4, "ｆ": 2, "a\u0301b": 2, "🐳 ship": 7, Paint(Good, "ok") + "!": 3,
	} {
		if got := Cells(text); got != want {
			t.Errorf("%q takes %d cells, want %d", text, got, want)
		}
	}
}

// What is cut keeps the sequence that ends its tone, and never half a character.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		tail  string
		want  string
	}{
		{"container", 9, "…", "container"},
		{"container", 8, "…", "contain…"},
		{"container", 1, "…", "…"},
		{"container", 0, "…", ""},
		{"container", 3, "", "con"},
		{"漢字容器", 5, "…", "漢字…"},
		{"漢字容器", 4, "…", "漢…"},
		{"漢字", 1, "", ""},
		{"a\u0301bc", 2, "", "a\u0301b"},
		{Paint(Bad, "wrong") + " all", 4, "…", "\x1b[31mwro…\x1b[m"},
		{"all " + Paint(Bad, "wrong"), 2, "", "al\x1b[31m\x1b[m"},
	} {
		if got := Cut(c.text, c.width, c.tail); got != c.want {
			t.Errorf("%q cut to %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}
