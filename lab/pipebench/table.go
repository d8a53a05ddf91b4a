package pipebench

import (
	"fmt"
	"io"
	"slices"

	"github.com/scon-project/scon/lab/bench"
)

// against are the modes that ratios are relative to.
var against = []string{"tcp_bridge", "unix"}

// writeTable writes a row for each mode, and one for each of its ratios.
func writeTable(r *bench.Result, w io.Writer) error {
	shown := metricsOf(r)
	rows := [][]string{{"mode"}}
	for _, m := range shown {
		rows[0] = append(rows[0], m.Name+", "+m.Unit)
	}
	var measured []string
	for _, m := range modes {
		if len(r.Modes[m.name]) > 0 {
			measured = append(measured, m.name)
		}
	}
	for _, name := range measured {
		row := []string{name}
		for _, m := range shown {
			cell := "-"
			if samples := r.Modes[name][m.Name]; len(samples) > 0 {
				cell = fmt.Sprintf("%s ±%.0f %%", number(bench.Quartiles(samples).Median), 100*r.Spread[name][m.Name])
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	for _, other := range against {
		for _, name := range measured {
			ratios := r.Ratios[name+"/"+other]
			if len(ratios) == 0 {
				continue
			}
			row := []string{name + "/" + other}
			for _, m := range shown {
				cell := "-"
				if i, ok := ratios[m.Name]; ok {
					cell = fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High)
				}
				row = append(row, cell)
			}
			rows = append(rows, row)
		}
	}
	if err := bench.WriteMarkdown(w, rows); err != nil {
		return err
	}
	return r.WriteFootnote(w)
}

// metricsOf returns the metrics that have samples.
func metricsOf(r *bench.Result) (shown []bench.Metric) {
	for _, s := range stepsOf(r.Experiment) {
		for _, m := range s.metrics {
			has := func(mode mode) bool { return len(r.Modes[mode.name][m.Name]) > 0 }
			if slices.ContainsFunc(modes, has) {
				shown = append(shown, m)
			}
		}
	}
	return shown
}

// number formats three significant digits, and large numbers in full.
func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
