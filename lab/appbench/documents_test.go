package appbench

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/test/pages"
)

// The table of lab/docs/app.md and README's ratios are those of the committed result.
func TestDocumentsShowResult(t *testing.T) {
	summaries, err := bench.ReadSummaries("../results/app.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := summaries.Result("app", Experiment())
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	pages.WantShown(t, "app", "scon bench show lab/results/app.json app", table.String())
	var wants []string
	for _, metric := range []string{"keep_alive_per_s", "files_per_s", "close_per_s"} {
		e := r.Ratios["express/container"][metric]
		wants = append(wants, fmt.Sprintf("%.2f [%.2f, %.2f]", e.Median, e.Low, e.High))
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range wants {
		if !strings.Contains(string(readme), want) {
			t.Errorf("README.md lacks %s, which \"scon bench show lab/results/app.json app\" prints", want)
		}
	}
}
