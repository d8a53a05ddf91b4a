package cli

import (
	"strings"
	"testing"
)

type connection struct{ container, tuple, idle string }

var connections = []Column[connection]{
	{Title: "CONTAINER", Least: 9, Text: func(c *connection) string { return c.container }},
	{Title: "CONNECTION", Wrap: true, Least: 20, Text: func(c *connection) string { return c.tuple }},
	{Title: "IDLE", Right: true, Drop: 1, Text: func(c *connection) string { return c.idle },
		Tone: func(*connection) Tone { return Warn }},
}

func lines(rows []connection, width int) string {
	header, all := Grid(connections, rows, width)
	text := header + "\n"
	for _, row := range all {
		text += strings.Join(row, "\n") + "\n"
	}
	return Bare(text)
}

// A text that does not fit continues below, before others are cut; where it would be as
// short without another column, that one goes first.
func TestGridWraps(t *testing.T) {
	short := connection{"web", "10.0.0.1:1->10.0.0.2:2", "1 s"}
	long := connection{"a very long name", "[2001:db8::1]:43512->[2001:db8::2]:44300", "20 ms"}
	for _, c := range []struct {
		rows  []connection
		width int
		want  string
	}{
		{[]connection{short}, 80, "CONTAINER  CONNECTION              IDLE\nweb        10.0.0.1:1->10.0.0.2:2   1 s\n"},
		{[]connection{short}, 35, "CONTAINER  CONNECTION\nweb        10.0.0.1:1->10.0.0.2:2\n"},
		{[]connection{short}, 30, "CONTAINER  CONNECTION\nweb        10.0.0.1:1->\n           10.0.0.2:2\n"},
		{[]connection{short, long}, 47, "" +
			"CONTAINER         CONNECTION               IDLE\n" +
			"web               10.0.0.1:1->10.0.0.2:2    1 s\n" +
			"a very long name  [2001:db8::1]:43512->   20 ms\n" +
			"                  [2001:db8::2]:44300\n"},
		{[]connection{long}, 32, "" +
			"CONTAINER  CONNECTION\n" +
			"a very l…  [2001:db8::1]:43512->\n" +
			"           [2001:db8::2]:44300\n"},
	} {
		if got := lines(c.rows, c.width); got != c.want {
			t.Errorf("in %d columns\n%s\nwant\n%s", c.width, got, c.want)
		}
	}
}

// No control character but that of the tone gets to the terminal.
func TestGridPaints(t *testing.T) {
	_, rows := Grid(connections, []connection{{"web\x1b[31m", "", "1 s"}}, 80)
	if got, want := rows[0][0], "web?[31m"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\x1b[33m1 s\x1b[m") {
		t.Errorf("got %q", got)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		prefix, text string
		width        int
		want         string
	}{
		{"", "", 10, ""},
		{"note  ", "a rule  limits", 12, "note  a rule\n      limits"},
		{"do: ", "longerthananyline now", 12, "do: longerthananyline\n    now"},
		{"", "tcp:10.0.0.1:1->10.0.0.2:2 goes express", 30, "tcp:10.0.0.1:1->10.0.0.2:2\ngoes express"},
		{"", "tcp:10.0.0.1:1->10.0.0.2:2 goes express", 20, "tcp:10.0.0.1:1->\n10.0.0.2:2 goes\nexpress"},
	} {
		if got := Wrap(c.prefix, c.text, c.width); got != c.want {
			t.Errorf("Wrap(%q, %q, %d) = %q, want %q", c.prefix, c.text, c.width, got, c.want)
		}
	}
}
