package helper

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/scon-project/scon/lab/figures"
)

// Dimensions of all plots.
const (
	width, height = 5 * vg.Inch, 3 * vg.Inch
	margin        = vg.Length(5)
	groupWidth    = 0.75 // share of a group's width that its bars fill
)

// shades of the series, in order, like the paper's: light to dark.
var shades = []color.Gray{{0xd8}, {0x8c}, {0x40}, {0xb0}}

// drawAll draws charts as PNG and SVG files.
func drawAll(charts []figures.Chart, _ *json.Encoder) (figures.Report, error) {
	for _, c := range charts {
		if err := drawOne(c); err != nil {
			return figures.Report{}, fmt.Errorf("draw %s: %w", c.File, err)
		}
	}
	return figures.Report{}, nil
}

func drawOne(c figures.Chart) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	p.NominalX(c.Groups...)
	var err error
	if c.Stacked {
		err = addStacked(p, c)
	} else {
		err = addGrouped(p, c)
	}
	if err != nil {
		return err
	}
	p.X.Min, p.X.Max = -0.5, float64(len(c.Groups))-0.5
	p.Y.Max *= 1.35 // space for the legend
	return save(p, c.File)
}

// save writes a plot as PNG and, beside it, as SVG.
func save(p *plot.Plot, path string) error {
	image := vgimg.New(width, height)
	render(p, image)
	if err := write(path, vgimg.PngCanvas{Canvas: image}); err != nil {
		return err
	}
	vector := vgsvg.New(width, height)
	render(p, vector)
	return write(strings.TrimSuffix(path, ".png")+".svg", vector)
}

// render adds a margin, which plot.Save does not.
func render(p *plot.Plot, canvas vg.CanvasSizer) {
	p.Draw(vgdraw.Crop(vgdraw.New(canvas), margin, -2*margin, margin, -margin))
}

func write(path string, canvas io.WriterTo) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = canvas.WriteTo(f)
	return err
}

// barWidth returns the width with which n bars fill a group of a chart.
func barWidth(c figures.Chart, n int) vg.Length {
	return width * 0.85 * groupWidth / vg.Length(len(c.Groups)*n)
}

func addGrouped(p *plot.Plot, c figures.Chart) error {
	bar := barWidth(c, len(c.Series))
	for i, s := range c.Series {
		bars, err := newBars(s, i, bar)
		if err != nil {
			return err
		}
		bars.Offset = bar * (vg.Length(i) - vg.Length(len(c.Series)-1)/2)
		p.Add(bars)
		p.Legend.Add(s.Name, bars)
		if len(s.Low) > 0 {
			p.Add(whiskers{s, bars.Offset})
		}
	}
	return nil
}

func addStacked(p *plot.Plot, c figures.Chart) error {
	var below *plotter.BarChart
	for i, s := range c.Series {
		bars, err := newBars(s, i, barWidth(c, 1))
		if err != nil {
			return err
		}
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(s.Name, bars)
	}
	return nil
}

func newBars(s figures.Series, i int, bar vg.Length) (*plotter.BarChart, error) {
	bars, err := plotter.NewBarChart(plotter.Values(s.Values), bar)
	if err != nil {
		return nil, err
	}
	bars.Color = shades[i%len(shades)]
	bars.LineStyle.Width = vg.Points(0.5)
	return bars, nil
}
