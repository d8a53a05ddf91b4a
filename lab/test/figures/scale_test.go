package figures

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/lab/bench"
)

// TestScale measures in every mode, and draws what it has measured. The command itself
// checks which path the packets took.
func TestScale(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "scale.json")
	cmd := exec.Command(scon, "bench", "scale", "--rounds", "1", "--connections", "10,2000", "--duration", "50ms",
		"--json", file, "--plots", dir)
	r := measured(t, cmd, file)
	for _, mode := range []string{"native", "container", "express"} {
		for _, n := range []int{10, 2000} {
			for _, metric := range []string{"packet_ns", "ready_s", "placed_us", "resident_mb"} {
				want := 1
				if mode != "express" && metric != "packet_ns" {
					want = 0
				}
				if samples := r.Modes[mode][bench.ScaleStep(n)+"_"+metric]; len(samples) != want {
					t.Errorf("%s, %d connections: %s is %v, want %d samples", mode, n, metric, samples, want)
				}
			}
		}
	}
	if out, err := exec.Command(scon, "bench", "show", file).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("c2000_packet_ns")) {
		t.Errorf("what is shown of it: %v: %s", err, out)
	}
	checkPlots(t, dir, "scale", "c2000_packet_ns")
}
