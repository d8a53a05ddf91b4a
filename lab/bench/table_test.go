package bench

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	r := sampled(map[string][]float64{
		"native":    {100, 100, 100},
		"container": {60, 50, 70},
		"express":   {90.04, 90.04},
	})
	r.Distance.Before = Distance{NS: 52.3, Class: Near}
	r.Errors = []string{"round 3, express, step: no answer"}
	r.Seconds = 71.2
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{
		"| metric | unit       | native   | container | express | express/native",
		"| ------ | ---------- | -------- |",
		"| rate   | messages/s | 100 ±0 % | 60 ±17 %  | 90 ±0 % | 0.90 [0.90, 0.90] | 0.60 [0.50, 0.70]",
	} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d:\n%s\nwant\n%s...", i+1, lines[i], want)
		}
		if len([]rune(lines[i])) != len([]rune(lines[0])) {
			t.Errorf("line %d is not as wide as the head:\n%s", i+1, b.String())
		}
	}
	for _, want := range []string{
		"board, 2 CPUs, arm64, Linux 6.12.0; 3 rounds in 71 s",
		"before: NEAR (52 ns); after: not measured",
		"Missing: round 3, express, step: no answer",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestTableShowsWhatThereIs(t *testing.T) {
	r := sampled(map[string][]float64{"container": {60}})
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(b.String(), "\n")
	if strings.Contains(head, "native") || strings.Contains(head, "express") {
		t.Errorf("columns of modes that were not measured: %s", head)
	}
}

// What too few samples do not tell is left out, and the table says so.
func TestTableLeavesOutWhatSamplesDoNotTell(t *testing.T) {
	wide := sampled(map[string][]float64{"native": {100, 60, 105, 62}, "container": {60, 99, 70, 101}, "express": {90, 61, 99, 60}})
	few := sampled(map[string][]float64{"native": {100}, "container": {60}, "express": {90}})
	few.Rounds = 1
	for name, c := range map[string]struct {
		r             *Result
		want, wantNot string
	}{
		"wide": {wide, `Gap closed: "unclear"`, "need 3 rounds"},
		"few":  {few, "they need 3 rounds at least", "±"},
	} {
		var b strings.Builder
		if err := c.r.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		if text := b.String(); !strings.Contains(text, "| unclear") || !strings.Contains(text, c.want) || strings.Contains(text, c.wantNot) {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
