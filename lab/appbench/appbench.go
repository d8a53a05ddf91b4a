// Package appbench measures what a user of servers in a container sees: nginx and mosquitto
// in a container of a real Docker, and their clients outside.
//
//  1. The bed is a machine made of namespaces (package machine) with a Docker engine of its
//     own. One image runs in two containers: behind a bridge with a published port, and
//     with --network host. Both have the same file system and seccomp filter.
//  2. Mode native asks the second container, the others the first: plain, with a flowtable
//     where the kernel has it, with SCON's daemon, and with that where conntrack is liberal.
//  3. wrk, ab or a publisher runs at the edge, for each step in turn, on the CPU of the
//     servers: on one CPU requests are repeatable to a few percent, on two they are not.
package appbench

import (
	"context"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/needs"
)

// Options of a run.
type Options struct {
	// Modes by name; none means all that this kernel supports.
	Modes []string
	// Rounds to measure; 0 for the default.
	Rounds int
	// Seconds of a sample, at least 1.
	Seconds int
	// Progress receives a report of every step.
	Progress bench.Progress
}

// DefaultSeconds of a sample: all rounds take about six minutes.
const DefaultSeconds = 1

// Load of a step: the client's connections, each with one request at a time.
type load struct {
	name        string
	client      func(*bed, context.Context, int, load) (report, error) // asks at a port
	service     service
	page        string
	connections int
	headers     []string
	short       bool // a connection for each request, which few packets of go express
}

var loads = []load{
	{name: "keep_alive", client: (*bed).wrk, service: web, page: small, connections: 16},
	{name: "close", client: (*bed).wrk, service: web, page: small, connections: 16, headers: []string{"Connection: close"}, short: true},
	{name: "http10", client: (*bed).ab, service: web, page: small, connections: 16, short: true},
	{name: "mqtt_message", client: (*bed).publish, service: broker, connections: 1, short: true},
	{name: "files", client: (*bed).wrk, service: web, page: big, connections: 4},
}

// Experiment returns the experiment, with all of its modes.
func Experiment() bench.Experiment {
	e := bench.Experiment{
		Name:   "app",
		Short:  "requests that nginx and mosquitto in a container of a real Docker answer: kept connections, short ones, and files of 1 MB",
		Modes:  []bench.Mode{bench.Native, bench.Container, bench.Flowtable, bench.Express, bench.ExpressShort},
		Rounds: 14,
	}
	for _, l := range loads {
		e.Steps = append(e.Steps, bench.Step{Name: l.name, Metrics: []bench.Metric{
			{Name: l.name + "_per_s", Unit: "requests/s"},
			{Name: l.name + "_p50_us", Unit: "us"},
			{Name: l.name + "_p99_us", Unit: "us"},
		}})
	}
	return e
}

// Run measures. It returns a result whenever there are samples; see bench.Run.
func Run(ctx context.Context, o Options) (*bench.Result, error) {
	e := Experiment().Here()
	if len(o.Modes) > 0 {
		only, err := e.Only(o.Modes)
		if err != nil {
			return nil, err
		}
		e = only
	}
	if err := needs.Check(programs...); err != nil {
		return nil, err
	}
	return bench.RunBed(ctx, e, bench.Options{Rounds: o.Rounds, Progress: o.Progress}, func() (bench.Bed, error) {
		return openBed(ctx, o.Seconds)
	})
}
