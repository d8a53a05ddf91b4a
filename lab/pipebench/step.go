package pipebench

import (
	"context"
	"fmt"

	"github.com/scon-project/scon/lab/bench"
)

// step is one kind of measurement.
type step struct {
	name    string
	metrics []bench.Metric
	take    func(ctx context.Context, b *bed, m mode) (map[string]float64, error)
}

// manyConnections is the paper's largest number.
const manyConnections = 4096

// stepsOf returns the steps of an experiment. A GB is 1e9 bytes.
func stepsOf(experiment string) []step {
	if experiment == AppsName {
		return appSteps
	}
	return pipeSteps
}

var pipeSteps = []step{
	{"stream_64k", []bench.Metric{{Name: "gbps_64k", Unit: "GB/s"}, {Name: "cpu_s_per_gb_64k", Unit: "s/GB"}}, takeStream64k},
	{"stream_1m", []bench.Metric{{Name: "gbps_1m", Unit: "GB/s"}}, takeStream1m},
	{"stream_1k", []bench.Metric{{Name: "msgs_1k", Unit: "messages/s"}}, takeStream1k},
	{"turns_look", []bench.Metric{{Name: "rtt_64_p50_us", Unit: "us"}}, turns("rtt_64_p50_us", "look")},
	{"turns_sleep", []bench.Metric{{Name: "rtt_64_sleep_p50_us", Unit: "us"}}, turns("rtt_64_sleep_p50_us", "sleep")},
	{"conns_4096", []bench.Metric{{Name: "conns_4096_gbps", Unit: "GB/s"}, {Name: "conns_4096_least_gbps", Unit: "GB/s"}, {Name: "conns_4096_rules_least_gbps", Unit: "GB/s"}}, takeMany},
	{"deaths", []bench.Metric{{Name: "death_p50_ms", Unit: "ms"}, {Name: "death_max_ms", Unit: "ms"}}, takeDeaths},
}

// load describes the work of the load program at both ends.
type load struct {
	size        int
	connections int
	turns       bool
	wait        string
	rulesChange bool // after the period
}

func (l load) args() []string {
	args := []string{"--size", fmt.Sprint(l.size), "--wait", l.wait, "--connections", fmt.Sprint(l.connections)}
	if l.turns {
		args = append(args, "--turns")
	}
	return args
}

func takeStream64k(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	s, err := b.stream(ctx, m, load{size: 64 << 10})
	return map[string]float64{"gbps_64k": s.rate / 1e9, "cpu_s_per_gb_64k": s.cpu / (s.rate / 1e9)}, err
}

func takeStream1m(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	s, err := b.stream(ctx, m, load{size: 1 << 20})
	return map[string]float64{"gbps_1m": s.rate / 1e9}, err
}

func takeStream1k(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	s, err := b.stream(ctx, m, load{size: 1 << 10})
	return map[string]float64{"msgs_1k": s.rate / (1 << 10)}, err
}

func takeMany(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
	n := manyConnections
	if m.bare {
		return nil, nil
	}
	if b.options.small {
		n = 16
	}
	s, err := b.stream(ctx, m, load{size: 64 << 10, connections: n, rulesChange: true})
	return map[string]float64{
		"conns_4096_gbps": s.rate / 1e9, "conns_4096_least_gbps": s.least / 1e9, "conns_4096_rules_least_gbps": s.leastAfter / 1e9,
	}, err
}

func turns(metric, wait string) func(context.Context, *bed, mode) (map[string]float64, error) {
	return func(ctx context.Context, b *bed, m mode) (map[string]float64, error) {
		if m.bare && wait == "sleep" {
			return nil, nil
		}
		_, connected, err := b.exchange(ctx, m, load{size: 64, turns: true, wait: wait})
		return map[string]float64{metric: connected.P50}, err
	}
}

// streamed is the outcome of a stream.
type streamed struct {
	rate float64 // received bytes per second
	cpu  float64 // processor seconds per second, of both ends and the broker
	// The worst 100 ms, also of the warm-up; after a change of rules.
	least, leastAfter float64
}

func (b *bed) stream(ctx context.Context, m mode, l load) (s streamed, err error) {
	listened, connected, err := b.exchange(ctx, m, l)
	if err != nil {
		return streamed{}, err
	}
	return streamed{
		rate:  listened.Bytes / listened.Seconds,
		least: listened.Least, leastAfter: listened.LeastAfter,
		cpu: listened.CPU/listened.Seconds + connected.CPU/connected.Seconds,
	}, nil
}
