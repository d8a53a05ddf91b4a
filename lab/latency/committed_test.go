package latency

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The committed report is the one drawn from the committed summaries.
func TestCommittedReportIsDrawnFromSummaries(t *testing.T) {
	const results = "../results/"
	dir := t.TempDir()
	summaries, err := os.ReadFile(results + summariesFile)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, summariesFile), summaries, 0o600)
	}
	if err == nil {
		err = DrawFigures(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(results + "latency.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := os.ReadFile(filepath.Join(dir, "latency.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(drawn), string(committed)); diff != "" {
		t.Errorf("lab/results/latency.md is not what \"scon latency figures --draw --dir lab/results\" writes:\n%s", diff)
	}
}
