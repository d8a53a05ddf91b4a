package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// ScaleDuration is the default duration of a sample of Scale.
const ScaleDuration = time.Second

// DefaultScale are the numbers of connections that Scale measures, as far as conntrack
// allows them.
var DefaultScale = []int{1000, 10_000, 100_000, 1_000_000}

// Scale measures packets of connections drawn at random, for several numbers of them.
func Scale(connections []int) Experiment {
	e := Experiment{
		Name:   "connections", // "scale" is a figure's
		Short:  "the time of a packet among many connections, in random order",
		Modes:  []Mode{Native, Container, Flowtable, Express},
		Rounds: 4,
	}
	for _, n := range connections {
		name := ScaleStep(n)
		e.Steps = append(e.Steps, Step{Name: name, Metrics: []Metric{
			{name + "_packet_ns", "ns"},
			{name + "_ready_s", "s"},
			{name + "_placed_us", "us"},
			{name + "_arrived_per_s", "connections/s"},
			{name + "_arrived_express_pct", "% of packets"},
			{name + "_resident_mb", "MB"},
		}})
	}
	return e
}

// ScaleStep returns the name of Scale's step with a number of connections.
func ScaleStep(connections int) string { return "c" + strconv.Itoa(connections) }

// connectionsOf is the inverse of ScaleStep.
func (s Step) connectionsOf() (n int) {
	n, _ = strconv.Atoi(strings.TrimPrefix(s.Name, "c"))
	return n
}

// scale returns the numbers of connections of a result of Scale.
func (r *Result) scale() (connections []int) {
	for metric := range r.Units {
		if name, ok := strings.CutSuffix(metric, "_packet_ns"); ok {
			connections = append(connections, Step{Name: name}.connectionsOf())
		}
	}
	slices.Sort(connections)
	return connections
}

// FitScale returns the numbers of connections that conntrack's limit allows.
func FitScale(connections []int) (fit []int, err error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return nil, fmt.Errorf("read conntrack's limit: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read conntrack's limit: %w", err)
	}
	for _, n := range connections {
		if n < limit {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil, fmt.Errorf("conntrack's limit is %d connections (sysctl net.netfilter.nf_conntrack_max)", limit)
	}
	return fit, nil
}

// RunScale runs Scale, or some of its modes.
func RunScale(ctx context.Context, e Experiment, d time.Duration, o Options) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) {
		b, err := openLab(Experiment{})
		if err != nil {
			return nil, err
		}
		most := 0
		for _, s := range e.Steps {
			most = max(most, s.connectionsOf())
		}
		b.roomFor(2 * most)
		b.settings += "flush_idle: 10m\nlease_max: 10m\n" // a million take turns of a minute
		if err := b.lab.Do(lab.Device, keepConnections); err != nil {
			return nil, errors.Join(err, b.Close())
		}
		return scaleBed{b, d}, nil
	})
}

// keepConnections has conntrack of the calling thread's namespace keep datagrams' connections
// for longer than a turn of a million takes, and lets leases last as long: a third of
// conntrack's timeout, three quarters of the neighbour's.
func keepConnections() error {
	timeouts, err := filepath.Glob("/proc/sys/net/ipv[46]/neigh/*/gc_stale_time")
	if err != nil {
		return err
	}
	timeouts = append(timeouts, "/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream")
	for _, name := range timeouts {
		if err := os.WriteFile(name, []byte("1800"), 0o644); err != nil {
			return fmt.Errorf("set timeouts of the line: %w", err)
		}
	}
	return nil
}

// scaleBed measures with a peer.Crowd.
type scaleBed struct {
	*bed
	duration time.Duration
}

func (b scaleBed) take(ctx context.Context, mode Mode, step Step) (s Sample, err error) {
	// Those of the step before count, too.
	if err := b.lab.Do(lab.Device, ForgetConnections); err != nil {
		return Sample{}, err
	}
	crowd, err := peer.OpenCrowd(b.lab.Node(b.serverNode), b.lab.Node(mode.node), b.server, step.connectionsOf())
	if err != nil {
		return Sample{}, err
	}
	defer crowd.Close()
	meters := meters{lab: b.lab, wire: b.wire, daemon: b.daemon}
	started := time.Now()
	first, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	var a arrivals
	if b.daemon != nil {
		if a, err = arrive(ctx, crowd, meters); err != nil {
			return Sample{}, err
		}
	}
	if err := warm(ctx, crowd, meters); err != nil {
		return Sample{}, err
	}
	ready := time.Since(started)
	placed, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	if _, err := crowd.Random(b.secondCPU, beginning); err != nil {
		return Sample{}, err
	}
	before, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	report, err := crowd.Random(b.secondCPU, b.duration)
	if err != nil {
		return Sample{}, err
	}
	after, err := meters.read()
	if err != nil {
		return Sample{}, err
	}
	// Request and response.
	values := map[string]float64{step.Name + "_packet_ns": float64(report.Elapsed) / float64(2*report.Messages)}
	if b.daemon != nil {
		values[step.Name+"_ready_s"] = ready.Seconds()
		values[step.Name+"_arrived_per_s"] = float64(step.connectionsOf()) / a.took.Seconds()
		values[step.Name+"_arrived_express_pct"] = 100 * a.expressShare
		values[step.Name+"_placed_us"] = placed.since(first).daemonTime.Seconds() * 1e6 / float64(step.connectionsOf())
		if values[step.Name+"_resident_mb"], err = b.daemon.resident(); err != nil {
			return Sample{}, err
		}
	}
	step.Values = func(Measurement) map[string]float64 { return values }
	return after.since(before).sample(mode, step, Measurement{})
}

// beginning is how long after all connections were ready a sample begins: conntrack takes
// datagrams for a stream two seconds after the first answer, and until the daemon knows that
// leases are a second long.
const beginning = 4 * time.Second

// Connections of Express arrive at this rate: as many as a busy proxy opens.
const (
	arrivalsPerSecond = 10_000
	arrivalMessages   = 8 // of each connection in its first second
)

// arrivals is how connections fared that were opened in groups, one a second.
type arrivals struct {
	took         time.Duration
	expressShare float64 // of the packets that each group exchanged a second after it came
}

// arrive opens the connections of a crowd.
func arrive(ctx context.Context, crowd *peer.Crowd, m meters) (a arrivals, err error) {
	var express, packets uint64
	started := time.Now()
	for from := 0; from < crowd.Connections() && ctx.Err() == nil; from += arrivalsPerSecond {
		to := min(from+arrivalsPerSecond, crowd.Connections())
		second := started.Add(time.Duration(from/arrivalsPerSecond+1) * time.Second)
		for range arrivalMessages {
			if err := crowd.Some(from, to); err != nil {
				return a, fmt.Errorf("connections arrive: %w", err)
			}
		}
		a.took = time.Since(started)
		time.Sleep(time.Until(second))
		before, err := m.read()
		if err != nil {
			return a, err
		}
		if err := crowd.Some(from, to); err != nil {
			return a, fmt.Errorf("connections that have arrived: %w", err)
		}
		after, err := m.read()
		if err != nil {
			return a, err
		}
		group := after.since(before)
		express, packets = express+group.express, packets+group.express+group.regular
	}
	a.expressShare = float64(express) / float64(packets)
	return a, ctx.Err()
}
