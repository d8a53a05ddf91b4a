// Package gains draws what SCON gains, in three groups of bars, from the committed
// summaries of results.
package gains

import (
	"fmt"
	"path/filepath"

	"github.com/scon-project/scon/lab/bench"
)

// group is one comparison: a metric of a summary, by modes.
type group struct {
	file, name, metric string
	title              string
	// unit is what values are shown in: those of the summary times scale.
	unit  string
	scale float64
	// less is set if smaller values are better.
	less bool
	// plain is the mode that SCON's modes are compared with.
	plain string
	bars  []bar
}

type bar struct {
	mode, label string
	scon        bool
}

var groups = []group{
	{
		file: "app.json", name: "app", metric: "keep_alive_per_s",
		title: "nginx in a container, kept connections: requests per second", unit: "k/s", scale: 1e-3, plain: "container",
		bars: []bar{{mode: "container", label: "Docker's bridge"}, {mode: "express", label: "with SCON", scon: true}, {mode: "native", label: "--network host"}},
	},
	{
		file: "startup.json", name: "startup-start", metric: "total_ms",
		title: "50 containers at once: time until the last one answers (less is better)", unit: "s", scale: 1e-3, less: true, plain: "bridge",
		bars: []bar{{mode: "bridge", label: "CNI's bridge"}, {mode: "scon-pool", label: "SCON's pool", scon: true}, {mode: "none", label: "no network"}},
	},
	{
		file: "pipe.json", name: "pipe", metric: "gbps_64k",
		title: "Between two containers: bytes per second", unit: "GB/s", scale: 1, plain: "tcp_bridge",
		bars: []bar{{mode: "tcp_bridge", label: "TCP by the bridge"}, {mode: "run_posix", label: "scon run", scon: true}, {mode: "unix", label: "UNIX socket"}},
	},
}

// Chart holds the measured groups, each with the machine that it was measured on.
type Chart struct{ groups []measured }

type measured struct {
	group
	machine string
	values  []bench.Interval // by bar: median and quartiles
	ratios  []bench.Interval // by bar: to plain, of SCON's only
}

// Read reads the summaries in folder, such as results.
func Read(folder string, experiments ...bench.Experiment) (*Chart, error) {
	c := &Chart{}
	for _, g := range groups {
		summaries, err := bench.ReadSummaries(filepath.Join(folder, g.file))
		if err != nil {
			return nil, err
		}
		r, err := summaries.Result(g.name, experiments...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.file, err)
		}
		m := measured{group: g, machine: r.Machine + ", Linux " + r.Kernel}
		for _, b := range g.bars {
			samples := r.Modes[b.mode][g.metric]
			ratio, ok := r.Ratios[b.mode+"/"+g.plain][g.metric]
			if len(samples) == 0 || b.scon && !ok {
				return nil, fmt.Errorf("%s: summary %q has no %s of %s, or no ratio to %s", g.file, g.name, g.metric, b.mode, g.plain)
			}
			m.values = append(m.values, bench.Quartiles(samples))
			m.ratios = append(m.ratios, ratio)
		}
		c.groups = append(c.groups, m)
	}
	return c, nil
}

// gain says how a ratio of SCON's to the plain mode is to be read. An interval that has 1 in
// it shows no gain.
func (g group) gain(ratio bench.Interval) string {
	text := fmt.Sprintf("%.2f [%.2f, %.2f] of it", ratio.Median, ratio.Low, ratio.High)
	switch better, worse := ratio.Low > 1, ratio.High < 1; {
	case g.less && worse, !g.less && better:
		return text
	case better, worse:
		return text + ": a loss"
	}
	return "no difference shown"
}
