package bench

import (
	"os"
	"strings"
	"testing"
)

// The figures in the README are those of the committed results.
func TestREADMEShowsResults(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"quick", "short", "cost-6.12"} {
		r, err := ReadResult("../../results/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var table strings.Builder
		if err := r.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), table.String()) {
			t.Errorf("README.md lacks the table of results/%s.json, which \"scon bench show results/%[1]s.json\" prints:\n%s", name, &table)
		}
	}
}
