package figures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
)

// Plot is the order for a plot of lines or points.
type Plot struct {
	File        string `json:"file"`
	Title, X, Y string
	// LogX and LogY make an axis logarithmic, which leaves out values of 0 and
	// less.
	LogX, LogY bool
	// Percentiles labels 1, 10, 100 on the X axis as 0 %, 90 %, 99 %.
	Percentiles bool
	Lines       []Line
}

// Line is one line of a plot.
type Line struct {
	Name string
	X, Y []float64
	// Points draws points instead of a line.
	Points bool
}

// DrawPlots has the helper draw plots.
func DrawPlots(plots []Plot) error { return haveDrawn("plot", plots) }

// DrawCharts has the helper draw charts.
func DrawCharts(charts []Chart) error { return haveDrawn("draw", charts) }

// haveDrawn has the helper execute an order for plots.
func haveDrawn(verb string, plots any) error {
	order, err := json.Marshal(plots)
	if err != nil {
		return fmt.Errorf("draw the plots: %w", err)
	}
	cmd := exec.Command(self.Name, append(slices.Clone(HelperArgs), verb)...)
	cmd.Stdin = bytes.NewReader(order)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("draw the plots: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
