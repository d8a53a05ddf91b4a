package cli

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tab := NewTable("NAME", ">COUNT", "LAST")
	tab.Add("a", 5, "x")
	tab.Add("größer", 1234567, "")
	tab.Add("esc\x1b[0m\n", "-", "y")
	var b strings.Builder
	if err := tab.Print(&b); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"NAME        COUNT  LAST\n" +
		"a               5  x\n" +
		"größer    1234567\n" +
		"esc?[0m?        -  y\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
