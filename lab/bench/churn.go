package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// ChurnOptions are the size of Churn.
type ChurnOptions struct {
	// Rules that only new connections meet.
	Rules int
	// Changes of the rules in a second.
	Changes int
	// Connections of the container, up to 1,048,576 and conntrack's limit.
	Connections int
	// Duration of a sample.
	Duration time.Duration
}

// DefaultChurn measures a node of Kubernetes with 2500 services, within about two
// minutes.
var DefaultChurn = ChurnOptions{Rules: 20_000, Changes: 10, Connections: 200, Duration: 3 * time.Second}

// change says which changes of the rules a mode makes.
type change int

const (
	noChange  change = iota
	untouched        // of rules that no packet of the connections meets
	concerned        // of a rule that one more connection meets
)

// Modes of Churn.
var (
	containerChanges = Mode{Name: "container_changes", node: "c1", change: untouched}
	flowtableChanges = Mode{Name: "flowtable_changes", node: "c1", flowtable: true, change: untouched}
	expressChanges   = Mode{Name: "express_changes", node: "c1", express: true, change: untouched}
	expressConcerned = Mode{Name: "express_concerned", node: "c1", express: true, change: concerned}
)

// Churn measures many connections while rules change.
func Churn(o ChurnOptions) Experiment {
	return Experiment{
		Name:   "churn",
		Short:  "many connections among many rules while rules change",
		Modes:  []Mode{Container, containerChanges, Flowtable, flowtableChanges, Express, expressChanges, expressConcerned},
		Rounds: 4,
		Steps: []Step{{
			Name: "churn",
			Metrics: []Metric{
				{"express_pct", "% of packets"},
				{"rr_per_s", "exchanges/s"},
				{"rr_p99_us", "us"},
				{"daemon_pct", "% of a CPU"},
				{"daemon_ms_per_change", "ms"},
				{"inert_ms_per_change", "ms"},
				{"inert_pct", "% of the time"},
				{"resident_mb", "MB"},
				{"concerned_regular_pct", "% of packets"},
				{"concerned_late_us", "us"},
			},
		}},
		Pairs: [][2]string{
			{flowtableChanges.Name, Flowtable.Name},
			{expressChanges.Name, Express.Name},
			{expressConcerned.Name, Express.Name},
			{expressChanges.Name, containerChanges.Name},
			{expressChanges.Name, flowtableChanges.Name},
		},
		Settings: map[string]int{"rules": o.Rules, "changes_per_s": o.Changes, "connections": o.Connections},
	}
}

// RunChurn runs Churn, or some of its modes.
func RunChurn(ctx context.Context, e Experiment, c ChurnOptions, o Options) (*Result, error) {
	return runIn(ctx, e, o, func() (closableBed, error) { return openChurn(c) })
}

// churnBed is a lab with the rules of Churn.
type churnBed struct {
	*bed
	options ChurnOptions
	changer *changer
	watched *peer.Crowd // the connection that changes concern, nil in other modes
}

func openChurn(o ChurnOptions) (_ closableBed, err error) {
	b, err := openLab(Experiment{})
	if err != nil {
		return nil, err
	}
	c := &churnBed{bed: b, options: o}
	b.roomFor(2 * o.Connections)
	if c.changer, err = openChanger(b.lab.Node(lab.Device)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	err = b.lab.Do(lab.Device, func() error { return nft(serviceRules(o.Rules)) })
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (b *churnBed) Close() error {
	var err error
	if b.changer != nil {
		err = b.changer.close()
	}
	return errors.Join(b.clear(), err, b.bed.Close())
}

func (b *churnBed) ready(ctx context.Context, mode Mode) error {
	if mode.change == concerned {
		watched, err := peer.OpenCrowd(b.lab.Node(lab.Edge), b.lab.Node(mode.node), b.server, 1)
		if err != nil {
			return err
		}
		b.watched = watched
		err = b.lab.Do(lab.Device, func() error { return nft(fmt.Sprintf(watchChains, watched.Port())) })
		if err != nil {
			return err
		}
	}
	return b.bed.ready(ctx, mode)
}

func (b *churnBed) clear() error {
	var err error
	if b.watched != nil {
		b.watched.Close()
		b.watched = nil
		err = b.lab.Do(lab.Device, func() error {
			return nft("delete chain ip " + churnTable + " watch\ndelete chain ip " + churnTable + " concerned\n")
		})
	}
	return errors.Join(b.bed.clear(), err)
}

func (b *churnBed) take(ctx context.Context, mode Mode, _ Step) (s Sample, err error) {
	crowd, err := peer.OpenCrowd(b.lab.Node(b.serverNode), b.lab.Node(mode.node), b.server, b.options.Connections)
	if err != nil {
		return Sample{}, err
	}
	defer crowd.Close()
	meters := meters{lab: b.lab, wire: b.wire, daemon: b.daemon}
	if err := warm(ctx, crowd, meters); err != nil {
		return Sample{}, err
	}

	changes := b.startChanges(mode)
	before, err := meters.read()
	if err != nil {
		return Sample{}, errors.Join(err, changes.stop())
	}
	report, err := crowd.Random(b.secondCPU, b.options.Duration)
	after, readErr := meters.read()
	if err := errors.Join(err, changes.stop(), readErr, ctx.Err()); err != nil {
		return Sample{}, err
	}
	r := after.since(before)
	values := map[string]float64{
		"express_pct": 100 * max(0, 1-float64(r.bridge)/float64(max(r.uplink, 1))),
		"rr_per_s":    report.PerSecond(),
		"rr_p99_us":   report.P99.Seconds() * 1e6,
	}
	if b.daemon != nil {
		r.churn(values, report.Elapsed.Seconds(), changes)
		if values["resident_mb"], err = b.daemon.resident(); err != nil {
			return Sample{}, err
		}
	}
	return Sample{Values: values, UplinkPackets: r.uplink, BridgePackets: r.bridge, ExpressShare: r.expressShare()}, nil
}

// churn adds the metrics of the daemon.
func (r reading) churn(values map[string]float64, seconds float64, c *changes) {
	values["express_pct"] = 100 * r.expressShare()
	values["daemon_pct"] = 100 * r.daemonTime.Seconds() / seconds
	values["inert_pct"] = 100 * r.inert.Seconds() / seconds
	if n := float64(c.made); n > 0 {
		values["daemon_ms_per_change"] = 1000 * r.daemonTime.Seconds() / n
		values["inert_ms_per_change"] = 1000 * r.inert.Seconds() / n
	}
	if c.sent > 0 {
		values["concerned_regular_pct"] = 100 * float64(c.regular) / float64(c.sent)
		values["concerned_late_us"] = c.late.Seconds() * 1e6
	}
}

// Limits of warm: the share of packets that go express at the end, how long it may take
// in all and more for each connection, and how long it waits between two looks. The daemon
// places 2000 connections of a container in a second.
const (
	warmShare = 0.99
	warmLimit = 30 * time.Second
	warmEach  = time.Millisecond
	warmPause = 100 * time.Millisecond
)

// warm exchanges messages on all connections until they go express; without a daemon,
// three times, which offloads them to a flowtable.
func warm(ctx context.Context, crowd *peer.Crowd, m meters) error {
	started := time.Now()
	before, err := m.read()
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		if err := crowd.Each(); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
		after, err := m.read()
		if err != nil {
			return err
		}
		last := after.since(before)
		share := last.expressShare()
		before = after
		switch {
		case m.daemon == nil && n == 3, m.daemon != nil && share >= warmShare:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(started) > warmLimit+time.Duration(crowd.Connections())*warmEach:
			return fmt.Errorf("before the changes only %.1f %% of the packets went express%s", 100*share, last.why())
		}
		time.Sleep(warmPause)
	}
}
