package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sampled returns a result with the given samples of one metric by mode.
func sampled(modes map[string][]float64) *Result {
	e := Experiment{
		Name:  "test",
		Modes: []Mode{Native, Container, Express},
		Steps: []Step{{Name: "step", Metrics: []Metric{{"rate", "messages/s"}}}},
	}
	r := newResult(e, 3)
	r.Kernel, r.Machine = "6.12.0", "board, 2 CPUs, arm64"
	for mode, samples := range modes {
		for i, x := range samples {
			r.add(Sample{Round: i + 1, Mode: mode, Step: "step", Values: map[string]float64{"rate": x}})
		}
	}
	r.summarize()
	return r
}

// Scripts rely on this schema.
func TestResultSchema(t *testing.T) {
	r := sampled(map[string][]float64{
		"native":    {100, 100, 100},
		"container": {60, 60, 60},
		"express":   {90, 90, 90},
	})
	path := filepath.Join(t.TempDir(), "result.json")
	if err := r.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Experiment, Kernel, Machine string
		Rounds                      int
		Modes                       map[string]map[string][]float64
		Ratios                      map[string]map[string]struct{ Median, Low, High *float64 }
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Experiment != "test" || got.Kernel != "6.12.0" || got.Machine != "board, 2 CPUs, arm64" || got.Rounds != 3 {
		t.Errorf("head of the result: %+v", got)
	}
	if samples := got.Modes["container"]["rate"]; !slices.Equal(samples, []float64{60, 60, 60}) {
		t.Errorf("samples of container: %v", samples)
	}
	for pair, want := range map[string]float64{
		"express/native": 0.9, "container/native": 0.6, "express/container": 1.5,
	} {
		ratio := got.Ratios[pair]["rate"]
		if ratio.Median == nil || ratio.Low == nil || ratio.High == nil {
			t.Errorf("%s: median, low or high is missing", pair)
		} else if *ratio.Median != want {
			t.Errorf("%s: median %v, want %v", pair, *ratio.Median, want)
		}
	}
	if r.GapClosed["rate"].Median != 0.75 {
		t.Errorf("gap closed: %v, want 0.75", r.GapClosed["rate"])
	}
}

// Scripts rely on these metrics.
func TestMetrics(t *testing.T) {
	for _, c := range []struct {
		experiment Experiment
		want       []string
	}{
		{Quick, []string{
			"udp_64_msgs", "udp_1024_msgs", "tcp_64_msgs", "tcp_1024_msgs",
			"udp_rr_p50_us", "udp_rr_p99_us", "tcp_rr_p50_us", "tcp_rr_p99_us",
			"softirq_ns_per_packet",
		}},
		{Cost, []string{
			"udp_64_insn", "udp_256_insn", "udp_1024_insn", "udp_rr_64_insn", "udp_rr_256_insn", "udp_rr_1024_insn",
			"tcp_64_insn", "tcp_256_insn", "tcp_1024_insn", "tcp_rr_64_insn", "tcp_rr_256_insn", "tcp_rr_1024_insn",
			"tcp_crr_insn",
		}},
	} {
		var names []string
		for _, m := range c.experiment.metrics() {
			names = append(names, m.Name)
		}
		for _, want := range c.want {
			if !slices.Contains(names, want) {
				t.Errorf("%s has no metric %s", c.experiment.Name, want)
			}
		}
	}
}

// Every pair of modes is compared in one of the two orders.
func TestEveryPairHasARatio(t *testing.T) {
	compared := map[[2]string]bool{}
	for _, pair := range Cost.pairs() {
		compared[pair] = true
	}
	for i, a := range Cost.Modes {
		for _, b := range Cost.Modes[i+1:] {
			if !compared[[2]string{a.Name, b.Name}] && !compared[[2]string{b.Name, a.Name}] {
				t.Errorf("%s and %s are not compared", a.Name, b.Name)
			}
		}
	}
}

func TestRatiosOfMissingModesAreLeftOut(t *testing.T) {
	r := sampled(map[string][]float64{"native": {100}, "container": {60}})
	if len(r.Ratios) != 1 || len(r.Ratios["container/native"]) != 1 {
		t.Errorf("ratios without express: %v", r.Ratios)
	}
	if len(r.GapClosed) != 0 {
		t.Errorf("gap closed without express: %v", r.GapClosed)
	}
}

func TestWriteFileLeavesTheOldOneOnError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "result.json")
	if err := os.Mkdir(path, 0o755); err != nil { // a file cannot replace a directory
		t.Fatal(err)
	}
	if err := sampled(nil).WriteFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("writing over a directory: error %v, want one with its path", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 {
		t.Errorf("a temporary file is left: %v", left)
	}
}
