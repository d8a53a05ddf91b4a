package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/bench"
)

const (
	// liveQuota limits the followed packets per 10 ms on one CPU: 1000 a second.
	liveQuota = 10
	// watch is the time for which waypoints are attached before their cost is
	// counted.
	watch = 100 * time.Millisecond
	// Budget is the share of one CPU that waypoints may use. They are detached for
	// as long as needed to stay below it.
	Budget = 0.01
	// fewPackets is how many packets a path's figures need.
	fewPackets = 20
	// mostWires is the number of wires that the BPF programs support.
	mostWires = 4
)

// LiveOptions are the options of Live.
type LiveOptions struct {
	// Container by its name, its port's name, or its ID or the beginning of that.
	Container string
	// Duration of the measurement.
	Duration time.Duration
	// Progress receives the elapsed time.
	Progress bench.Progress
}

// Live profiles the packets between a container of the calling thread's namespace
// and the network outside, in both directions. It returns a profile whenever it was
// attached, also with an error.
func Live(ctx context.Context, o LiveOptions) (p *Profile, err error) {
	defer o.Progress.Done()
	v, err := findContainer(o.Container)
	if err != nil {
		return nil, err
	}
	p = newProfile()
	p.Container = v.name
	o.Progress.Step(0, 100, "calibrate")
	cost, err := calibrate()
	if err != nil {
		return nil, err
	}
	w, err := load(loading{quota: liveQuota, wireNet: v.hostNet, wires: v.wires})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	err = v.watch(ctx, o, w, cost)
	p.Interrupted = ctx.Err() != nil
	if err := p.summarizeLive(v, w, cost); err != nil {
		return nil, err
	}
	if err == nil && len(p.Errors) > 0 {
		err = errors.New(p.Errors[0])
	}
	return p, err
}

// view is a watched container with the recorded paths.
type view struct {
	name     string
	hostNet  uint32
	wires    []uint32
	chart    chart
	stations []station
	paths    [][]step
	watched  time.Duration
	attached time.Duration
}

// findContainer finds a container and determines its waypoints.
func findContainer(wanted string) (*view, error) {
	topology, err := discover.Scan(discover.Options{})
	if err != nil {
		return nil, err
	}
	port, found, err := findPort(topology.Ports, wanted)
	if err != nil {
		return nil, err
	}
	if found.Netns == "" {
		return nil, fmt.Errorf("container %q: its network namespace has neither a process nor a name", found.Name)
	}
	if len(topology.Uplinks) == 0 {
		return nil, errors.New("this machine has no uplink: no route leaves it")
	}
	inside := &site{netns: found.Netns, place: inContainer}
	host := &site{place: atHost}
	v := &view{name: found.Name, chart: chart{}}
	for _, s := range []*site{inside, host} {
		inode, err := netns.Inode(s.netns)
		if err != nil {
			return nil, err
		}
		v.chart[uint32(inode)] = s
		v.hostNet = uint32(inode)
	}
	places := map[string]place{port.Name: atPort, port.Bridge.Name: atBridge}
	for _, u := range topology.Uplinks[:min(mostWires, len(topology.Uplinks))] {
		places[u.Name] = atWire
		v.wires = append(v.wires, uint32(u.Index))
	}
	if err := host.survey(func(dev string) place { return places[dev] }); err != nil {
		return nil, err
	}
	v.stations = []station{
		{netns: inside.netns, hook: link.NetfilterInetLocalOut, priority: firstPriority, role: beginning},
		{netns: inside.netns, hook: link.NetfilterInetPreRouting, priority: firstPriority},
		{netns: inside.netns, hook: link.NetfilterInetLocalIn, priority: lastPriority, role: ending},
	}
	for _, h := range []hook{link.NetfilterInetPreRouting, link.NetfilterInetForward, link.NetfilterInetPostRouting} {
		v.stations = append(v.stations, host.stations(h, passing)...)
	}
	return v, nil
}

// findPort finds a container's port.
func findPort(ports []discover.Port, wanted string) (discover.Port, discover.Container, error) {
	// The context is cancelled so that the search does not wait for containers that
	// have not started yet.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	namer := discover.NewNamer()
	defer namer.Close()
	var names []string
	for _, p := range ports {
		c := namer.Name(ctx, p)
		const shortID = 12 // digits, as Docker shows them
		if wanted == c.Name || wanted == p.Name || len(wanted) >= shortID && strings.HasPrefix(c.ID, wanted) {
			return p, c, nil
		}
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return discover.Port{}, discover.Container{}, errors.New("this namespace has no container on a bridge")
	}
	slices.Sort(names)
	return discover.Port{}, discover.Container{}, fmt.Errorf("there is no container %q, but %s", wanted, strings.Join(names, ", "))
}

// watch attaches the waypoints for a moment and then detaches them for as long as
// needed to stay within the budget, repeatedly.
func (v *view) watch(ctx context.Context, o LiveOptions, w *waypoints, cost Cost) error {
	started := time.Now()
	defer func() { v.watched = time.Since(started) }()
	for {
		since := time.Now()
		left := o.Duration - since.Sub(started)
		if left <= 0 {
			return nil
		}
		o.Progress.Step(int(100*since.Sub(started)/o.Duration), 100, "watch "+v.name)
		if err := v.observe(ctx, min(left, watch), w); err != nil {
			return err
		}
		v.attached += time.Since(since)
		counted, err := w.count()
		if err != nil {
			return err
		}
		cost.FollowedNS = cost.meanHeldUp(v.paths)
		away := time.Duration(float64(cost.spent(counted))/Budget) - time.Since(started)
		if away = min(away, o.Duration-time.Since(started)); away > 0 {
			pause(ctx, away)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// observe attaches the waypoints for a moment.
func (v *view) observe(ctx context.Context, d time.Duration, w *waypoints) error {
	if err := w.attach(v.stations); err != nil {
		return err
	}
	pause(ctx, d)
	if err := w.detach(); err != nil {
		return err
	}
	paths, err := w.collect()
	v.paths = append(v.paths, paths...)
	return err
}

// pause waits until the time is over or the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// summarizeLive computes the profile from the recorded paths.
func (p *Profile) summarizeLive(v *view, w *waypoints, cost Cost) error {
	kinds := map[string][][]step{}
	for _, steps := range v.paths {
		if len(steps) > 1 {
			name := v.chart.kind(steps)
			kinds[name] = append(kinds[name], steps) // those without a kind are not shown
		}
	}
	for _, name := range []string{"out", "out, express", "in", "in, express"} {
		switch n := len(kinds[name]); {
		case n >= fewPackets:
			p.Paths = append(p.Paths, v.chart.summarize(name, kinds[name], cost))
		case n > 0:
			p.Few = append(p.Few, fmt.Sprintf("%q had %d of the %d packets that a figure needs; trace for longer, or with more traffic", name, n, fewPackets))
		}
	}
	if len(p.Paths) == 0 && len(p.Few) > 0 {
		p.Errors = append(p.Errors, fmt.Sprintf("too few packets of container %q: %s", v.name, p.Few[0]))
	} else if len(p.Paths) == 0 {
		p.Errors = append(p.Errors, fmt.Sprintf("no packet between container %q and the network outside in %v",
			v.name, v.watched.Round(time.Millisecond)))
	}
	p.Rules = append(p.Rules, rulesOf(p.Paths)...)
	return p.finish(w, cost, v.paths, v.attached, v.watched)
}

// kind names the direction of a path between container and wire, and whether it is
// express. It is "" for another path, and for one that cannot be a single packet's.
func (c chart) kind(steps []step) (name string) {
	points := c.points(steps)
	for i := range steps[1:] {
		if !follows(steps[i], steps[i+1]) {
			return ""
		}
	}
	switch first, last := points[0].place, points[len(points)-1].place; {
	case first == inContainer && last == atWire:
		name = "out"
	case first == atWire && last == inContainer:
		name = "in"
	default:
		return ""
	}
	if layers, _ := layersOf(points); isExpress(layers) {
		name += ", express"
	}
	return name
}
