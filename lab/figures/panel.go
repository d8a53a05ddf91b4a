package figures

import (
	"fmt"
	"slices"

	"github.com/scon-project/scon/lab/bench"
)

// panel is one plot of a figure.
type panel struct {
	id, title, x, y string
	source          string
	// modes to show; none means all measured modes.
	modes []string
	// groups of bars. With layers, each group is a prefix of their metrics.
	groups []group
	// layers that are stacked in the bar of each mode.
	layers []group
}

// group is a label and a metric, or the prefix or suffix of one.
type group struct{ label, metric string }

// file returns the name of the plot's file.
func (p panel) file() string { return "fig" + p.id + ".png" }

// chart returns the chart of a panel, if anything of it was measured.
func (p panel) chart(found results) (Chart, bool) {
	r := found.experiments[p.source]
	if r == nil {
		return Chart{}, false
	}
	c := Chart{Title: "Fig. " + p.id + ": " + p.title, X: p.x, Y: p.y, Stacked: len(p.layers) > 0}
	if c.Stacked {
		p.stack(&c, r)
	} else {
		p.group(&c, r)
	}
	return c, len(c.Groups) > 0 && len(c.Series) > 0
}

// shown returns the measured modes that the panel shows.
func (p panel) shown(r *bench.Result) (modes []string) {
	wanted := p.modes
	if wanted == nil {
		wanted = []string{bench.Native.Name, bench.Container.Name, bench.Flowtable.Name, bench.Express.Name}
	}
	for _, mode := range wanted {
		if len(r.Modes[mode]) > 0 {
			modes = append(modes, mode)
		}
	}
	return modes
}

// group adds groups of bars, one bar per mode.
func (p panel) group(c *Chart, r *bench.Result) {
	modes := p.shown(r)
	series := make([]Series, len(modes))
	for _, g := range p.groups {
		if !measured(r, modes, g.metric) {
			continue
		}
		c.Groups = append(c.Groups, g.label)
		for i, mode := range modes {
			q := bench.Quartiles(r.Modes[mode][g.metric])
			series[i].Name = mode
			series[i].Values = append(series[i].Values, q.Median)
			series[i].Low = append(series[i].Low, q.Low)
			series[i].High = append(series[i].High, q.High)
		}
	}
	if len(c.Groups) > 0 {
		c.Series = series
	}
}

// stack adds one bar of layers per group and mode.
func (p panel) stack(c *Chart, r *bench.Result) {
	modes := p.shown(r)
	series := make([]Series, len(p.layers))
	for _, g := range p.groups {
		for _, mode := range modes {
			whole := !slices.ContainsFunc(p.layers, func(layer group) bool {
				return !measured(r, []string{mode}, g.metric+layer.metric)
			})
			if !whole {
				continue
			}
			label := mode
			if len(p.groups) > 1 {
				label = fmt.Sprintf("%s%c", g.label, mode[0])
			}
			c.Groups = append(c.Groups, label)
			for i, layer := range p.layers {
				q := bench.Quartiles(r.Modes[mode][g.metric+layer.metric])
				series[i].Name = layer.label
				series[i].Values = append(series[i].Values, q.Median)
			}
		}
	}
	if len(c.Groups) > 0 {
		c.Series = series
	}
}

// measured reports whether all modes have samples of a metric.
func measured(r *bench.Result, modes []string, metric string) bool {
	for _, mode := range modes {
		if len(r.Modes[mode][metric]) == 0 {
			return false
		}
	}
	return len(modes) > 0
}
