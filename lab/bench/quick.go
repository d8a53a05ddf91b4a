package bench

import (
	"time"

	"github.com/scon-project/scon/lab/bench/peer"
)

const (
	// quickDuration of each step. Many short rounds measure the modes closer
	// together in time than few long ones. Twelve rounds of seven steps take about
	// 25 s per mode.
	quickDuration = 200 * time.Millisecond
	// warmUp messages are enough for a connection to become express.
	warmUp = 50
)

// Quick compares throughput, latency and softirq time of small messages
// ("Intelligent Packet Processing for Performant Containers in IoT", section VI,
// Fig. 11, 12 and 15).
var Quick = Experiment{
	Name:   "quick",
	Short:  "messages per second, round trips and softirq time of small messages",
	Modes:  []Mode{Native, Container, Flowtable, Express, Netkit},
	Rounds: 12,
	Steps: []Step{
		stream("udp_64", "udp", 64),
		stream("udp_1024", "udp", 1024),
		stream("tcp_64", "tcp", 64),
		stream("tcp_1024", "tcp", 1024),
		requests("udp_rr", "udp"),
		requests("tcp_rr", "tcp"),
		softirq(),
	},
}

// stream counts messages per second at the receiver, with the two ends on two CPUs.
func stream(name, proto string, size int) Step {
	metric := name + "_msgs"
	return Step{
		Name:    name,
		Metrics: []Metric{{metric, "messages/s"}},
		Spec: peer.Spec{Pattern: peer.Stream, Proto: proto, Size: size,
			Duration: quickDuration, WarmUp: warmUp},
		Values: func(m Measurement) map[string]float64 {
			return map[string]float64{metric: m.Served.PerSecond()}
		},
	}
}

// requests measures 64-byte round trips with both ends on one CPU.
func requests(name, proto string) Step {
	p50, p99 := name+"_p50_us", name+"_p99_us"
	return Step{
		Name:    name,
		Metrics: []Metric{{p50, "us"}, {p99, "us"}},
		Spec: peer.Spec{Pattern: peer.RequestResponse, Proto: proto, Size: 64,
			Duration: quickDuration, WarmUp: warmUp},
		OneCPU: true,
		Values: func(m Measurement) map[string]float64 {
			return map[string]float64{
				p50: m.Driven.P50.Seconds() * 1e6,
				p99: m.Driven.P99.Seconds() * 1e6,
			}
		},
	}
}

// softirq measures the softirq time per packet that crosses the uplink, in either
// direction, of 64-byte UDP round trips. Both ends run on one CPU, so that every
// packet is processed by itself: varying batches, drops at a full socket and
// wake-ups of another CPU do not affect the figure. It includes the edge's share,
// which is the same in all modes.
func softirq() Step {
	const metric = "softirq_ns_per_packet"
	return Step{
		Name:    "softirq",
		Metrics: []Metric{{metric, "ns"}},
		Spec: peer.Spec{Pattern: peer.RequestResponse, Proto: "udp", Size: 64,
			Duration: quickDuration, WarmUp: warmUp},
		OneCPU:  true,
		Softirq: true,
		Values: func(m Measurement) map[string]float64 {
			return map[string]float64{metric: float64(m.SoftirqTime) / float64(m.UplinkPackets)}
		},
	}
}
