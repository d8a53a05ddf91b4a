package latency

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/topology"
)

// Options of a measurement.
type Options struct {
	// Nodes are the lengths of the lines, 1 to topology.MaxLine.
	Nodes []int
	// Topology whose flows are measured instead of lines.
	Topology *topology.Topology
	// Express measures lines of gateways instead, with and without SCON.
	Express bool
	// Rate in packets per second. 0 raises the rate until packets are lost, and
	// measures at the highest rate without loss.
	Rate     float64
	Duration time.Duration // of each round
	Repeats  int           // number of rounds; each measures every mode once
	Pin      Pin
	// Dir is the folder for packets and histograms; "" writes none.
	Dir      string
	Progress bench.Progress
}

// mode is one line to measure.
type mode struct {
	name  string
	nodes int
	line  *line
	rate  float64
	// enter and leave, if set, prepare the line for the mode and undo that.
	enter, leave func(ctx context.Context) error
	// share, if set, returns the express share of the packets so far.
	share func() (float64, error)
}

// measurement is the state of Run.
type measurement struct {
	Options
	result *Result
	taps   *taps
	tlb    *tlb // nil without counters
	modes  []*mode
	cpus   []int
	run    uint32
	done   int // done of total steps
	total  int
	undo   []func() error
}

// Run measures. With an error it returns the results so far, if there are any.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("measure latencies: network namespaces need root; try sudo")
	}
	m := &measurement{Options: o}
	defer func() {
		for i := len(m.undo) - 1; i >= 0; i-- {
			err = errors.Join(err, m.undo[i]())
		}
	}()
	started := time.Now()
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	err = m.rounds(ctx)
	m.Progress.Done()
	if ctx.Err() != nil {
		m.result.Interrupted, err = true, context.Cause(ctx)
	}
	m.result.Distance.After = m.distance()
	m.result.Notes = append(m.result.Notes, "load averages after: "+busy())
	m.result.Seconds = time.Since(started).Seconds()
	m.result.summarize()
	return m.result, err
}

// distance measures the distance of the CPUs, which fails on a busy machine.
func (m *measurement) distance() bench.Distance {
	d, err := bench.MeasureDistance()
	if err != nil {
		m.result.Notes = append(m.result.Notes, "a busy machine: the CPUs' distance was not measured")
	}
	return d
}

// prepare builds the lines and loads the taps.
func (m *measurement) prepare(ctx context.Context) (err error) {
	if err := removeLeft(); err != nil {
		return err
	}
	hardware, kernel := bench.Machine()
	m.result = &Result{
		Result: &bench.Result{
			Experiment: experiment, Kernel: kernel, Machine: hardware, Rounds: m.Repeats,
			Modes: map[string]map[string][]float64{}, Ratios: map[string]map[string]bench.Interval{},
			Units: map[string]string{}, Samples: []bench.Sample{}, Errors: []string{}, Retries: []string{},
			Started: time.Now(),
		},
		Line: Routed, Pin: m.Pin, FrameBytes: FrameBytes, DurationS: m.Duration.Seconds(),
		Details: map[string]*Mode{}, NotAvailable: []string{},
		Notes: []string{"load averages before: " + busy()},
	}
	for _, metric := range Metrics {
		m.result.Units[metric.Name] = metric.Unit
	}
	m.result.Distance.Before = m.distance()
	if m.cpus, err = allowedCPUs(); err != nil {
		return err
	}
	if m.Pin == PinCore {
		m.cpus = m.cpus[len(m.cpus)-1:]
	}
	if err := m.openTLB(); err != nil {
		return err
	}
	packets := newSchedule(m.Rate, m.Duration).Packets
	if m.Rate == 0 {
		packets = rampPackets
	}
	if m.taps, err = openTaps(packets); err != nil {
		return err
	}
	m.undo = append(m.undo, m.taps.Close)
	m.result.NotAvailable = append(m.result.NotAvailable, m.taps.missing...)
	if m.result.TapCost, err = m.taps.cost(); err != nil {
		return err
	}
	if m.Dir != "" {
		if err := makeDirs(m.Dir); err != nil {
			return err
		}
	}
	if err := m.open(ctx); err != nil {
		return err
	}
	for _, mode := range m.modes {
		m.result.Order = append(m.result.Order, mode.name)
		m.result.Details[mode.name] = &Mode{Nodes: mode.nodes}
	}
	return nil
}

// openTLB opens the dTLB counters of the CPUs, if there are any.
func (m *measurement) openTLB() (err error) {
	m.tlb, err = openTLB(m.cpus)
	if errors.Is(err, errNoCounter) {
		m.result.NotAvailable = append(m.result.NotAvailable, dtlbMiss)
		m.result.Notes = append(m.result.Notes, fmt.Sprintf("dTLB misses are %v", err))
		return nil
	}
	if err != nil {
		return err
	}
	m.undo = append(m.undo, m.tlb.close)
	return nil
}

// open builds the lines of all modes.
func (m *measurement) open(ctx context.Context) error {
	switch {
	case m.Topology != nil:
		m.result.Line = OfFile
		return m.openFlows(ctx)
	case m.Express:
		m.result.Line = Gateways
		return m.openGateways(ctx)
	}
	for _, n := range m.Nodes {
		t, err := topology.Line(lineName(experiment, n), n)
		if err != nil {
			return err
		}
		l, err := m.up(ctx, t)
		if err != nil {
			return err
		}
		var path []string
		for _, node := range t.Nodes {
			path = append(path, node.Name)
		}
		if err := m.addLine(l, &mode{name: modeName(n), nodes: n, rate: m.Rate}, path, port); err != nil {
			return err
		}
	}
	return nil
}

// openFlows builds a topology; each of its flows is a mode.
func (m *measurement) openFlows(ctx context.Context) error {
	if len(m.Topology.Flows) == 0 {
		return fmt.Errorf("topology %q has no flows to measure", m.Topology.Name)
	}
	t := *m.Topology
	t.Name = lineName(experiment, 0)
	l, err := m.up(ctx, &t)
	if err != nil {
		return err
	}
	for _, f := range m.Topology.Flows {
		flow := &mode{name: fmt.Sprintf("port%d", f.Port), nodes: len(f.Path) - 2, rate: m.Rate}
		if err := m.addLine(l, flow, f.Path, f.Port); err != nil {
			return fmt.Errorf("flow to port %d: %w", f.Port, err)
		}
	}
	return nil
}

// up builds a topology that exists until the measurement ends.
func (m *measurement) up(ctx context.Context, t *topology.Topology) (*topology.Lab, error) {
	l, err := topology.Up(ctx, t, topology.Options{Dir: recordDir})
	if err != nil {
		return nil, err
	}
	m.undo = append(m.undo, l.Close)
	return l, nil
}

// recordDir keeps the records of the lines while they are measured, separate from
// those of "scon lab".
const recordDir = "/run/scon-latency"

// lineName returns the topology's name of this process's line for a purpose.
func lineName(purpose string, nodes int) string {
	return fmt.Sprintf("%s%d-%d", purpose, os.Getpid(), nodes)
}

// lineOwner matches the process id in such a name.
var lineOwner = regexp.MustCompile(`^[a-z]+([0-9]+)-[0-9]+$`)

// removeLeft removes the lines of processes that no longer exist.
func removeLeft() error {
	labs, err := topology.List(recordDir)
	if err != nil {
		return err
	}
	for _, l := range labs {
		owner := lineOwner.FindStringSubmatch(l.Name)
		if owner == nil {
			continue
		}
		if pid, err := strconv.Atoi(owner[1]); err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// addLine opens a mode's line.
func (m *measurement) addLine(l *topology.Lab, mode *mode, path []string, port uint16) error {
	ln, err := openLine(l, path, port)
	if err != nil {
		return err
	}
	m.undo = append(m.undo, ln.close)
	mode.line = ln
	m.modes = append(m.modes, mode)
	return nil
}

// rampStep is the duration of each rate of a ramp.
const rampStep = 250 * time.Millisecond

// rampPackets limits the packets of a ramp's run, and of the measurement at the
// rate that it finds, which ends earlier then.
const rampPackets = 2 << 20

// rampSteps is the typical number of steps of a ramp, for the progress.
const rampSteps = 40

// rounds measures the modes alternately in every round, so that changes of the machine
// affect all modes alike.
func (m *measurement) rounds(ctx context.Context) error {
	m.total = m.Repeats * len(m.modes)
	if m.Rate == 0 {
		m.total += rampSteps * len(m.modes)
		for i, mode := range m.modes {
			if err := m.ramp(ctx, mode); err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			m.done = (i + 1) * rampSteps
		}
	}
	for round := 1; round <= m.Repeats; round++ {
		for _, mode := range m.modes {
			m.step("round %d of %d, %s", round, m.Repeats, mode.name)
			if err := m.take(ctx, mode, round); err != nil {
				return fmt.Errorf("round %d, %s: %w", round, mode.name, err)
			}
		}
	}
	return nil
}

// step reports the progress.
func (m *measurement) step(format string, args ...any) {
	m.Progress.Step(min(m.done, m.total-1), m.total, fmt.Sprintf(format, args...))
	m.done++
}

// in prepares a mode's line, calls fn, and undoes the preparation.
func (m *measurement) in(ctx context.Context, mode *mode, fn func() error) (err error) {
	if mode.enter != nil {
		defer func() { err = errors.Join(err, mode.leave(context.WithoutCancel(ctx))) }()
		if err := mode.enter(ctx); err != nil {
			return err
		}
	}
	return fn()
}

// ramp finds a mode's highest rate without loss, which becomes its rate.
func (m *measurement) ramp(ctx context.Context, mode *mode) error {
	return m.in(ctx, mode, func() error {
		c, err := ramp(ctx, func(ctx context.Context, rate float64) (float64, error) {
			m.step("%s, %.0f packets/s", mode.name, rate)
			s, _, err := m.send(ctx, mode, newSchedule(rate, rampStep))
			return s.loss(), err
		})
		if err != nil {
			return err
		}
		m.result.Details[mode.name].Curve = &c
		mode.rate = c.LossFree
		if mode.rate == 0 {
			return errors.New("it loses packets at every rate")
		}
		return nil
	})
}

// send sends the packets of a schedule as the next run.
func (m *measurement) send(ctx context.Context, mode *mode, s Schedule) (Samples, answer, error) {
	m.run++
	return mode.line.measure(ctx, m.taps, m.run, s, m.cpus)
}

// take measures a mode once.
func (m *measurement) take(ctx context.Context, mode *mode, round int) error {
	return m.in(ctx, mode, func() error {
		s := newSchedule(mode.rate, m.Duration)
		s.Packets = min(s.Packets, m.taps.objects.Samples.MaxEntries())
		before, err := m.tlb.read()
		if err != nil {
			return err
		}
		samples, a, err := m.send(ctx, mode, s)
		if err != nil {
			return err
		}
		after, err := m.tlb.read()
		if err != nil {
			return err
		}
		worst := m.result.add(mode.name, round, samples, a, after.since(before))
		if mode.share != nil {
			if m.result.Details[mode.name].ExpressShare, err = mode.share(); err != nil {
				return err
			}
		}
		if m.Dir == "" {
			return nil
		}
		if err := writeRaw(m.Dir, mode.name, round, samples); err != nil || !worst {
			return err
		}
		return writeWorst(m.Dir, mode.name, samples)
	})
}
