package helper

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"github.com/scon-project/scon/lab/figures"
)

// hues of the lines, in order. Readers with colour blindness can distinguish them.
var hues = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x33, 0x33, 0x33, 0xff}, {0x99, 0x99, 0x99, 0xff},
}

// plotAll draws line plots as PNG files.
func plotAll(plots []figures.Plot, _ *json.Encoder) (figures.Report, error) {
	for _, p := range plots {
		if err := plotOne(p); err != nil {
			return figures.Report{}, fmt.Errorf("draw %s: %w", p.File, err)
		}
	}
	return figures.Report{}, nil
}

func plotOne(order figures.Plot) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = order.Title, order.X, order.Y
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, l := range order.Lines {
		if err := addLine(p, order, l, i); err != nil {
			return err
		}
	}
	if order.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.X.Min, p.X.Max = decade(p.X.Min, math.Floor), decade(p.X.Max, math.Ceil)
	}
	if order.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = decade(p.Y.Min, math.Floor), decade(p.Y.Max, math.Ceil)
	}
	if room := 1 + 0.2*float64(len(order.Lines)); order.LogY { // space for the legend
		p.Y.Max *= math.Pow(10, room-1)
	} else {
		p.Y.Max *= room
	}
	if order.Percentiles {
		p.X.Tick.Marker = percentileTicks{}
	}
	return save(p, order.File)
}

// addLine adds the points that the axes can show.
func addLine(p *plot.Plot, order figures.Plot, l figures.Line, i int) error {
	var points plotter.XYs
	for j := range l.X {
		x, y := l.X[j], l.Y[j]
		if order.LogX && x <= 0 || order.LogY && y <= 0 || math.IsNaN(y) || math.IsInf(x, 0) {
			continue
		}
		points = append(points, plotter.XY{X: x, Y: y})
	}
	if len(points) == 0 {
		return nil
	}
	hue := hues[i%len(hues)]
	if l.Points {
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		dots.Color, dots.Radius, dots.Shape = hue, vg.Points(1), vgdraw.CircleGlyph{}
		p.Add(dots)
		p.Legend.Add(l.Name, dots)
		return nil
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = hue, vg.Points(1.5)
	p.Add(line)
	p.Legend.Add(l.Name, line)
	return nil
}

// decade returns the power of ten next to a value.
func decade(x float64, round func(float64) float64) float64 {
	return math.Pow(10, round(math.Log10(x)))
}

// percentileTicks labels an axis of 1/(1-p).
type percentileTicks struct{}

func (percentileTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	for n := 0; ; n++ {
		x := math.Pow(10, float64(n))
		if x > high*1.001 {
			return ticks
		}
		label := "0 %"
		if n > 0 {
			label = fmt.Sprintf("%.*f %%", max(0, n-2), 100*(1-1/x))
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
}
