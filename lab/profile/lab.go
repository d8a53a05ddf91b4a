package profile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// MessageBytes of the lab's datagrams.
const MessageBytes = 64

// Modes that Lab supports.
var Modes = []bench.Mode{bench.Native, bench.Container, bench.Express}

// labQuota limits the followed packets per 10 ms on one CPU: 5000 a second.
const labQuota = 50

// warmUp messages are sent first, so that SCON admits the connection.
const warmUp = 50

// LabOptions are the options of Lab.
type LabOptions struct {
	// Modes to measure alternately.
	Modes []bench.Mode
	// Rounds; every round measures each mode once.
	Rounds int
	// Duration of the traffic of one measurement.
	Duration time.Duration
	// Progress receives a report of every step.
	Progress bench.Progress
}

// Lab profiles the path of a datagram from a process to the network outside, in a
// lab of its own. It returns a profile whenever something was measured, also with
// an error.
func Lab(ctx context.Context, o LabOptions) (p *Profile, err error) {
	defer o.Progress.Done()
	p = newProfile()
	p.MessageBytes, p.Rounds = MessageBytes, o.Rounds
	o.Progress.Step(0, 1, "calibrate")
	cost, err := calibrate()
	if err != nil {
		return nil, err
	}
	stage, err := bench.OpenStage()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	m := &labMeasurement{LabOptions: o, stage: stage, started: time.Now()}
	if m.waypoints, err = load(loading{quota: labQuota}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.waypoints.Close()) }()
	for _, mode := range o.Modes {
		b, err := layBed(stage, mode)
		if err != nil {
			return nil, err
		}
		m.beds = append(m.beds, b)
	}
	err = m.run(ctx)
	p.Interrupted = ctx.Err() != nil
	if err := p.summarizeLab(m, cost); err != nil {
		return nil, err
	}
	return p, err
}

// newProfile returns a profile of this machine, started now.
func newProfile() *Profile {
	machine, kernel := bench.Machine()
	return &Profile{Machine: machine, Kernel: kernel, Started: time.Now(), Errors: []string{}, Rules: []RuleCost{}, Paths: []Path{}}
}

// labMeasurement is the state of Lab.
type labMeasurement struct {
	LabOptions
	stage     *bench.Stage
	waypoints *waypoints
	beds      []*bed
	started   time.Time
	attached  time.Duration
}

// bed holds the waypoints and the results of one mode.
type bed struct {
	mode     bench.Mode
	chart    chart
	all      []station // also between the rules of every hook
	ends     []station // where paths begin and end
	paths    [][]step  // measured with all
	endsOnly [][]step  // measured with ends
	calls    []float64 // processor time per message without waypoints, in ns
}

// layBed determines the waypoints of a mode.
func layBed(stage *bench.Stage, mode bench.Mode) (*bed, error) {
	l := stage.Lab()
	host := &site{netns: l.Node(lab.Device), place: atHost}
	edge := &site{netns: l.Node(lab.Edge), place: outside}
	sender := host
	if mode.Node() != lab.Device {
		sender = &site{netns: l.Node(mode.Node()), place: inContainer}
	}
	b := &bed{mode: mode, chart: chart{}}
	for _, s := range []*site{host, edge, sender} {
		inode, err := netns.Inode(s.netns)
		if err != nil {
			return nil, err
		}
		b.chart[uint32(inode)] = s
	}
	places := map[string]place{lab.Uplink: atWire, lab.Bridge: atBridge, lab.Port(1): atPort}
	if err := host.survey(func(dev string) place { return places[dev] }); err != nil {
		return nil, err
	}
	begin := station{netns: sender.netns, hook: link.NetfilterInetLocalOut, priority: firstPriority, role: beginning}
	end := station{netns: edge.netns, hook: link.NetfilterInetLocalIn, priority: lastPriority, role: ending}
	b.ends = []station{begin, end}
	if sender == host {
		b.all = append(b.all, end)
		b.all = append(b.all, host.stations(link.NetfilterInetLocalOut, beginning)...)
	} else {
		b.all = append(b.all, begin, end)
		b.all = append(b.all, host.stations(link.NetfilterInetPreRouting, passing)...)
		b.all = append(b.all, host.stations(link.NetfilterInetForward, passing)...)
	}
	b.all = append(b.all, host.stations(link.NetfilterInetPostRouting, passing)...)
	return b, nil
}

// phases of a visit.
var phases = []string{"layers", "end to end", "calls"}

// run measures all rounds.
func (m *labMeasurement) run(ctx context.Context) error {
	total := m.Rounds * len(m.beds) * len(phases)
	for round := range m.Rounds {
		for i, b := range m.beds {
			done := (round*len(m.beds) + i) * len(phases)
			report := func(phase int) {
				m.Progress.Step(done+phase, total, fmt.Sprintf("round %d of %d, %s: %s", round+1, m.Rounds, b.mode.Name, phases[phase]))
			}
			err := m.visit(ctx, b, report)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, b.mode.Name, err)
			}
		}
	}
	return nil
}

// visit measures a mode with all waypoints, with those at the ends, and without
// any.
func (m *labMeasurement) visit(ctx context.Context, b *bed, report func(phase int)) (err error) {
	report(0)
	defer func() { err = errors.Join(err, m.stage.Leave()) }()
	if err := m.stage.Enter(ctx, b.mode); err != nil {
		return err
	}
	if err := m.take(ctx, b.mode, func() error { return m.waypoints.attach(b.all) }, &b.paths); err != nil {
		return err
	}
	report(1)
	if err := m.take(ctx, b.mode, func() error { return m.waypoints.attachStations(b.ends) }, &b.endsOnly); err != nil {
		return err
	}
	report(2)
	sent, err := m.send(ctx, b.mode)
	if err != nil {
		return err
	}
	b.calls = append(b.calls, float64(sent.CPU)/float64(sent.Messages))
	return nil
}

// take sends datagrams through waypoints and adds their paths to a list.
func (m *labMeasurement) take(ctx context.Context, mode bench.Mode, attach func() error, into *[][]step) (err error) {
	if err := attach(); err != nil {
		return err
	}
	since := time.Now()
	_, err = m.send(ctx, mode)
	m.attached += time.Since(since)
	if err := errors.Join(err, m.waypoints.detach()); err != nil {
		return err
	}
	paths, err := m.waypoints.collect()
	*into = append(*into, paths...)
	return err
}

// send sends datagrams from a mode's node to the edge.
func (m *labMeasurement) send(ctx context.Context, mode bench.Mode) (driven peer.Report, err error) {
	_, driven, err = m.stage.Send(ctx, mode, peer.Spec{
		Pattern: peer.Stream, Proto: "udp", Size: MessageBytes, Duration: m.Duration, WarmUp: warmUp,
	})
	return driven, err
}

// summarizeLab computes the profile from the paths.
func (p *Profile) summarizeLab(m *labMeasurement, cost Cost) error {
	var all [][]step
	for _, b := range m.beds {
		if len(b.paths) == 0 {
			continue
		}
		w := b.chart.summarize(b.mode.Name, b.paths, cost)
		w.EndToEndNS = b.chart.summarize("", b.endsOnly, cost).TotalNS
		if len(b.calls) > 0 {
			w.CallNS = median(b.calls)
		}
		p.Paths = append(p.Paths, w)
		all = append(all, b.paths...)
	}
	p.Rules = append(p.Rules, rulesOf(p.Paths)...)
	return p.finish(m.waypoints, cost, all, m.attached, time.Since(m.started))
}
