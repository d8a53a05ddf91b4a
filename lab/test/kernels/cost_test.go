// Package kernels holds the counted cost of express messages to a baseline, in a guest.
package kernels

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/scon-project/scon/lab/bench"
)

// baselineFile holds the allowed cost of express messages by ratio of modes
// and metric. It is edited by hand, by commits that make messages more
// expensive.
const baselineFile = "../../results/cost-baseline.json"

// tolerance is the tolerance of the baseline: counts of instructions repeat within
// 0.5 %.
const tolerance = 0.02

// Express messages take no more instructions than the baseline allows. Ratios
// to other modes of the same boot exclude the cost of the kernel itself.
func TestCost(t *testing.T) {
	text, err := os.ReadFile(baselineFile)
	if err != nil {
		t.Fatal(err)
	}
	var baseline map[string]map[string]float64
	if err := json.Unmarshal(text, &baseline); err != nil {
		t.Fatalf("%s: %v", baselineFile, err)
	}
	e, err := bench.Cost.OnlySteps([]string{"udp_64", "udp_rr_64", "tcp_64", "tcp_rr_64", "tcp_crr"})
	if err != nil {
		t.Fatal(err)
	}
	result, err := bench.CountInGuest(t.Context(), e, bench.CountOptions{
		Kernel: "6.12", Arch: "amd64", Executable: programs(t), Rounds: 1, Progress: quiet{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for pair, metrics := range baseline {
		for metric, old := range metrics {
			ratio, ok := result.Ratios[pair][metric]
			if !ok {
				t.Errorf("%s has %s of %s, which was not measured", baselineFile, metric, pair)
				continue
			}
			now := ratio.Median
			t.Logf("%s %s: %.3f, baseline %.3f", pair, metric, now, old)
			if now <= old*(1+tolerance) {
				continue
			}
			t.Errorf("%s of %s is %.3f, above %.3f by more than %.0f %%: \"scon bench cost\" measures it in full. "+
				"Make it cheaper, or raise it in %s and state the reason in the commit message",
				metric, pair, now, old, 100*tolerance, baselineFile)
		}
	}
}

// quiet is a progress display without output.
type quiet struct{}

func (quiet) Step(int, int, string) {}
func (quiet) Done()                 {}

// programs builds scon and scon-lab, and returns the path of scon.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for from, name := range map[string]string{"../../..": "scon", "../..": "scon-lab"} {
		cmd := exec.Command("go", "build", "-C", from, "-o", dir, "./cmd/"+name)
		cmd.Env = append(os.Environ(), "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=-ldflags=-s")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build for the guest: %v: %s", err, out)
		}
	}
	return filepath.Join(dir, "scon")
}
