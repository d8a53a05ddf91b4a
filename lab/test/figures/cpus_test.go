package figures

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCPUs has two CPUs exchange at the same time in every mode. The command itself checks
// which path the packets took.
func TestCPUs(t *testing.T) {
	dir := t.TempDir()
	file, plots := filepath.Join(dir, "cpus.json"), filepath.Join(dir, "new", "plots")
	cmd := exec.Command(scon, "bench", "cpus", "--rounds", "1", "--json", file, "--plots", plots)
	r := measured(t, cmd, file)
	for _, mode := range []string{"native", "loaded", "container", "express"} {
		for _, metric := range []string{"one_cpu_per_s", "two_cpus_per_s", "speedup"} {
			if samples := r.Modes[mode][metric]; len(samples) != 1 || samples[0] <= 0 {
				t.Errorf("%s: %s is %v, want one sample", mode, metric, samples)
			}
		}
	}
	checkPlots(t, plots, "one_cpu_per_s", "two_cpus_per_s", "speedup")
}
