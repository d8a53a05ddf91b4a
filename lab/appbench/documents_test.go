package appbench

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scon-project/scon/lab/bench"
)

// The table of lab/docs/figures.md and README's ratios are those of the committed result.
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
	wants := map[string][]string{"lab/docs/figures.md": {table.String()}}
	for _, metric := range []string{"keep_alive_per_s", "files_per_s", "close_per_s"} {
		e := r.Ratios["express/container"][metric]
		wants["README.md"] = append(wants["README.md"], fmt.Sprintf("%.2f [%.2f, %.2f]", e.Median, e.Low, e.High))
	}
	for document, texts := range wants {
		text, err := os.ReadFile("../../" + document)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range texts {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks what \"scon bench show lab/results/app.json app\" prints: %s", document, want)
			}
		}
	}
}
