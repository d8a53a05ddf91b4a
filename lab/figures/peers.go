package figures

import (
	"fmt"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/bench/peer"
)

// roundTripsExperiment is Fig. 2c, 2d and 12: TCP requests and responses of the
// same size, both ends on one CPU. The bench's peers replace netperf's TCP_RR.
func roundTripsExperiment(e Effort) bench.Experiment {
	x := bench.Experiment{Short: "mean and tail of TCP round trips of several sizes"}
	for _, size := range sizes {
		mean, p99 := fmt.Sprintf("rr_%d_mean_us", size), fmt.Sprintf("rr_%d_p99_us", size)
		x.Steps = append(x.Steps, bench.Step{
			Name:    fmt.Sprintf("rr_%d", size),
			Metrics: []bench.Metric{{Name: mean, Unit: "us"}, {Name: p99, Unit: "us"}},
			Spec: peer.Spec{Pattern: peer.RequestResponse, Proto: "tcp", Size: size,
				Duration: e.Latency, WarmUp: warmUp},
			OneCPU: true,
			Values: func(m bench.Measurement) map[string]float64 {
				return map[string]float64{
					mean: 1e6 / m.Driven.PerSecond(),
					p99:  microseconds(m.Driven.P99),
				}
			},
		})
	}
	return x
}

// flowSizes are flow sizes of sensors, bulbs and speakers in bytes: 100 to 1400,
// mostly short. The paper only states the range.
var flowSizes = []int{100, 140, 200, 120, 300, 160, 500, 100, 240, 1400, 180, 700, 120, 400, 1000, 220}

// flowsExperiment is Fig. 14.
func flowsExperiment(e Effort) bench.Experiment {
	return bench.Experiment{
		Short: "completion times of flows of 100 to 1400 bytes",
		Steps: []bench.Step{{
			Name: "flows",
			Metrics: []bench.Metric{
				{Name: "flows_p50_us", Unit: "us"},
				{Name: "flows_p99_us", Unit: "us"},
			},
			Spec: peer.Spec{Pattern: peer.Flows, Proto: "tcp", Size: 1, Sizes: flowSizes,
				Count: e.Flows, WarmUp: warmUp},
			OneCPU: true,
			Values: func(m bench.Measurement) map[string]float64 {
				return map[string]float64{
					"flows_p50_us": microseconds(m.Driven.P50),
					"flows_p99_us": microseconds(m.Driven.P99),
				}
			},
		}},
	}
}
