package pipebench

import (
	"os"
	"path/filepath"

	"github.com/scon-project/scon/internal/lab/bench"
	"github.com/scon-project/scon/internal/lab/figures"
)

// Draw draws a plot of each metric of a result into a folder.
func Draw(r *bench.Result, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var charts []figures.Chart
	for _, m := range metricsOf(r) {
		c := figures.Chart{File: filepath.Join(dir, m.Name+".png"), Title: m.Name, Y: m.Unit}
		s := figures.Series{Name: m.Name}
		for _, mode := range modes {
			samples := r.Modes[mode.name][m.Name]
			if len(samples) == 0 {
				continue
			}
			q := bench.Quartiles(samples)
			c.Groups = append(c.Groups, mode.name)
			s.Values, s.Low, s.High = append(s.Values, q.Median), append(s.Low, q.Low), append(s.High, q.High)
		}
		c.Series = []figures.Series{s}
		charts = append(charts, c)
	}
	return figures.DrawCharts(charts)
}
