package bench

import (
	"github.com/scon-project/scon/lab/bench/peer"
)

// ShortConnections is the default number of connections in Short.
const ShortConnections = 10_000

// Short compares connections of one request each, which end before the express path
// pays off. It shows SCON's cost where SCON does not help.
func Short(connections int) Experiment {
	return Experiment{
		Name:   "short",
		Short:  "TCP connections of one request each, too short for the express path to pay off",
		Modes:  []Mode{Container, Flowtable, Express},
		Rounds: 6,
		Steps: []Step{{
			Name: "tcp_crr",
			Metrics: []Metric{
				{"tcp_crr_total_s", "s"},
				{"tcp_crr_per_s", "connections/s"},
				{"tcp_crr_cpu_us", "us"},
				{"tcp_crr_p50_us", "us"},
				{"tcp_crr_p99_us", "us"},
			},
			Spec: peer.Spec{Pattern: peer.Connections, Proto: "tcp", Size: 64,
				Count: connections, WarmUp: warmUp},
			OneCPU:     true,
			FewExpress: true,
			Values:     shortValues,
		}},
	}
}

// shortValues computes the metrics. The total time of all connections is the main
// one. The processor time per connection includes both ends, the softirqs that
// interrupt them, and the daemon, which may run on another CPU and then does not
// affect the total time.
func shortValues(m Measurement) map[string]float64 {
	cpu := m.Served.CPU + m.Driven.CPU + m.DaemonTime
	return map[string]float64{
		"tcp_crr_total_s": m.Driven.Elapsed.Seconds(),
		"tcp_crr_per_s":   m.Driven.PerSecond(),
		"tcp_crr_cpu_us":  cpu.Seconds() * 1e6 / float64(m.Driven.Messages),
		"tcp_crr_p50_us":  m.Driven.P50.Seconds() * 1e6,
		"tcp_crr_p99_us":  m.Driven.P99.Seconds() * 1e6,
	}
}
