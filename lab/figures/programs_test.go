package figures

import (
	"math"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/bench"
)

func TestIsListening(t *testing.T) {
	const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 02004D0A:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 28117 1 0 100 0 0 10 0
   1: 02004D0A:075B 01004D0A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 28118 1 0 100 0 0 10 0
`
	for port, want := range map[uint16]bool{5201: true, 1883: false, 80: false} {
		if got := isListening(sockets, port); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
}

func TestParseIperf(t *testing.T) {
	for _, tc := range []struct {
		name, proto, report string
		mbps                float64 // 0 means an error
	}{
		{"tcp", "tcp", `{"end": {"sum_sent": {"bytes": 9}, "sum_received": {"bytes": 1000000, "seconds": 0.5}}}`, 16},
		{"udp", "udp", `{"end": {"sum": {"bytes": 1000000, "seconds": 1, "packets": 100, "lost_packets": 25}}}`, 6},
		{"nothing received", "tcp", `{"error": "unable to connect", "end": {}}`, 0},
		{"all lost", "udp", `{"end": {"sum": {"bytes": 100, "seconds": 1, "packets": 1, "lost_packets": 1}}}`, 0},
		{"no report", "tcp", ``, 0},
	} {
		run, err := parseIperf([]byte(tc.report), tc.proto)
		if (err == nil) != (tc.mbps > 0) || math.Abs(run.mbps-tc.mbps) > 1e-9 {
			t.Errorf("%s: %v Mbit/s, error %v; want %v", tc.name, run.mbps, err, tc.mbps)
		}
	}
}

// recorder is a progress that records its calls.
type recorder struct{ done, total []int }

func (p *recorder) Step(done, total int, _ string) {
	p.done, p.total = append(p.done, done), append(p.total, total)
}
func (*recorder) Done() {}

func TestProgressAddsUp(t *testing.T) {
	var progress recorder
	p := &plan{progress: &progress}
	for _, steps := range [][]time.Duration{{time.Second, 3 * time.Second}, {2 * time.Second}} {
		p.experiments = append(p.experiments, bench.Experiment{Rounds: 2, Modes: []bench.Mode{bench.Native}})
		p.steps = append(p.steps, steps)
		p.total += p.takes(len(p.steps) - 1)
	}
	for _, done := range []int{0, 1, 2, 3} {
		p.progressOf(0).Step(done, 4, "")
	}
	for _, done := range []int{0, 1} {
		p.progressOf(1).Step(done, 2, "")
	}
	for i, want := range []int{0, 1000, 4000, 5000, 8000, 10000} {
		if progress.done[i] != want || progress.total[i] != 12000 {
			t.Errorf("step %d: %d of %d ms, want %d of 12000", i, progress.done[i], progress.total[i], want)
		}
	}
}
