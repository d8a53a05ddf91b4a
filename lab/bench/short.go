package bench

import (
	"time"

	"github.com/scon-project/scon/internal/host/sysctl"
	"github.com/scon-project/scon/lab/bench/peer"
)

// ShortConnections is the default number of connections in Short.
const ShortConnections = 10_000

// Short compares connections of one request each, which end before the express path
// pays off, unless conntrack is liberal.
func Short(connections int) Experiment {
	return Experiment{
		Name:   "short",
		Short:  "TCP connections of one request each, too short for the express path to pay off",
		Modes:  []Mode{Container, Flowtable, Express, ExpressShort},
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

// SetLiberal has conntrack accept TCP in the current namespace whatever its sequence
// numbers, or not.
func SetLiberal(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return sysctl.Set([]sysctl.Setting{{Name: "net/netfilter/nf_conntrack_tcp_be_liberal", Value: value}})
}

// settling is the time in which the daemon lets programs compose connections, and in
// which it counts the packets of those that have ended.
const settling = 500 * time.Millisecond

// Settle waits until the daemon has prepared for short connections, and counted them.
func (m Mode) Settle() {
	if m.short {
		time.Sleep(settling)
	}
}
