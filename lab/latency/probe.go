package latency

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/scon-project/scon/lab/topology"
)

// Probe measures one line repeatedly, under the current settings of the machine.
type Probe struct {
	m   *measurement
	lab *topology.Lab
}

// OpenProbe builds a line, and removes lines that killed processes have left. The
// purpose, a word, is in the namespaces' names. The packets are sent on the
// last CPU.
func OpenProbe(ctx context.Context, purpose string, nodes int, rate float64, duration time.Duration) (_ *Probe, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("measure latencies: network namespaces need root; try sudo")
	}
	if err := removeLeft(); err != nil {
		return nil, err
	}
	p := &Probe{m: &measurement{Options: Options{Rate: rate, Duration: duration}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	p.m.cpus = cpus[len(cpus)-1:]
	if p.m.taps, err = openTaps(newSchedule(rate, duration).Packets); err != nil {
		return nil, err
	}
	p.m.undo = append(p.m.undo, p.m.taps.Close)
	t, err := topology.Line(lineName(purpose, nodes), nodes)
	if err != nil {
		return nil, err
	}
	if p.lab, err = p.m.up(ctx, t); err != nil {
		return nil, err
	}
	var path []string
	for _, node := range t.Nodes {
		path = append(path, node.Name)
	}
	return p, p.m.addLine(p.lab, &mode{name: modeName(nodes), nodes: nodes, rate: rate}, path, port)
}

// Namespaces returns the paths of the line's namespaces, in order.
func (p *Probe) Namespaces() []string {
	var paths []string
	for _, node := range p.lab.Topology.Nodes {
		paths = append(paths, p.lab.Path(node.Name))
	}
	return paths
}

// Measure sends the line's packets once. It returns the metrics of Metrics.
func (p *Probe) Measure(ctx context.Context) (map[string]float64, error) {
	samples, _, err := p.m.send(ctx, p.m.modes[0], newSchedule(p.m.Rate, p.m.Duration))
	if err != nil {
		return nil, err
	}
	return samples.values(), nil
}

// Close removes the line.
func (p *Probe) Close() (err error) {
	for i := len(p.m.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, p.m.undo[i]())
	}
	return err
}
