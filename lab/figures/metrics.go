package figures

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/scon-project/scon/lab/bench"
)

// DrawMetrics draws a plot of each metric of a result into a folder: the median of each
// mode, with the quartiles.
func DrawMetrics(r *bench.Result, dir string) error {
	var charts []Chart
	for _, metric := range slices.Sorted(maps.Keys(r.Units)) {
		c := Chart{File: filepath.Join(dir, metric+".png"), Title: metric, Y: r.Units[metric]}
		s := Series{Name: metric}
		for _, mode := range r.MeasuredModes() {
			samples := r.Modes[mode][metric]
			if len(samples) == 0 {
				continue
			}
			q := bench.Quartiles(samples)
			c.Groups = append(c.Groups, mode)
			s.Values, s.Low, s.High = append(s.Values, q.Median), append(s.Low, q.Low), append(s.High, q.High)
		}
		if len(c.Groups) == 0 {
			continue
		}
		c.Series = []Series{s}
		charts = append(charts, c)
	}
	return DrawCharts(charts)
}
