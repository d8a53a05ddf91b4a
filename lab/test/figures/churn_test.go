package figures

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/nstest"
)

// TestChurn counts in every mode: which packets go express, and what changes of the rules
// cost.
func TestChurn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "churn.json")
	cmd := exec.Command(scon, "bench", "churn", "--rounds", "1", "--rules", "100", "--changes", "50",
		"--connections", "1100", "--duration", "300ms", "--json", file, "--plots", dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	checkNothingIsLeft := nstest.Left(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	checkNothingIsLeft("sconbench" + strconv.Itoa(cmd.Process.Pid))
	r, err := bench.ReadResult(file)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"rules": 100, "changes_per_s": 50, "connections": 1100}
	for name, n := range want {
		if r.Settings[name] != n {
			t.Errorf("setting %s is %d, want %d", name, r.Settings[name], n)
		}
	}
	value := func(mode, metric string) float64 {
		if samples := r.Modes[mode][metric]; len(samples) == 1 {
			return samples[0]
		}
		t.Errorf("%s has no %s:\n%s", mode, metric, out)
		return 0
	}
	for _, mode := range []string{"container", "container_changes"} {
		if share := value(mode, "express_pct"); share > 10 {
			t.Errorf("%s: %v %% of the packets skipped the bridge", mode, share)
		}
	}
	for _, mode := range []string{"express", "express_changes", "express_concerned"} {
		if share := value(mode, "express_pct"); share < 50 {
			t.Errorf("%s: only %v %% of the packets went express", mode, share)
		}
		// Changes and nothing else make everything regular.
		if inert := value(mode, "inert_pct"); (inert > 0) != (mode != "express") {
			t.Errorf("%s: everything was regular for %v %% of the time", mode, inert)
		}
	}
	// How many of the first packets are late depends on who else needs the processors.
	if regular := value("express_concerned", "concerned_regular_pct"); regular == 0 || regular > 100 {
		t.Errorf("%v %% of the packets that a change concerns went regular", regular)
	}
	checkPlots(t, dir, "express_pct")
}
