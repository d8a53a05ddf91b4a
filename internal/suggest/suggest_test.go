package suggest_test

import (
	"testing"

	"github.com/scon-project/scon/internal/suggest"
)

func TestMatch(t *testing.T) {
	names := []string{"bridges", "uplinks", "lease", "lease_packets", "log.level"}
	for word, want := range map[string]string{
		"bridge":        "bridges",
		"lease":         "lease",
		"leases":        "lease",
		"lease-packets": "lease_packets",
		"log.lvel":      "log.level",
		"elase":         "lease", // two letters swapped
		"colour":        "",
		"":              "",
		"x":             "",
	} {
		if got := suggest.Match(word, names); got != want {
			t.Errorf("Match(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestHint(t *testing.T) {
	if got, want := suggest.Hint("uplink", []string{"uplinks"}), `: did you mean "uplinks"?`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := suggest.Hint("colour", []string{"uplinks"}); got != "" {
		t.Errorf("got %q for a word that no name is similar to", got)
	}
}
