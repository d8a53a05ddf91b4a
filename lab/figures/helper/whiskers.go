package helper

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/scon-project/scon/lab/figures"
)

// whiskers are the lines from Low to High of a series, in the middle of its bars.
// plotter.YErrorBars does not support an offset within a group.
type whiskers struct {
	figures.Series
	offset vg.Length
}

// Plot implements plot.Plotter.
func (w whiskers) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := plot.New().X.LineStyle
	const cap = 3 // points on each side
	for i := range w.Values {
		at, low, high := x(float64(i))+w.offset, y(w.Low[i]), y(w.High[i])
		c.StrokeLine2(style, at, low, at, high)
		c.StrokeLine2(style, at-cap, low, at+cap, low)
		c.StrokeLine2(style, at-cap, high, at+cap, high)
	}
}

// DataRange implements plot.DataRanger.
func (w whiskers) DataRange() (xmin, xmax, ymin, ymax float64) {
	for _, high := range w.High {
		ymax = max(ymax, high)
	}
	return 0, float64(len(w.Values) - 1), 0, ymax
}
