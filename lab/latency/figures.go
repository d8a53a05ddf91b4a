package latency

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/output"
)

// The names of the results that the figures need.
const (
	paced     = "latency"         // at the paper's rate
	fullCore  = "latency-max"     // at the highest rate without loss, on one CPU
	fullNone  = "latency-max-any" // the same on any CPU
	gatewayed = "latency-express" // lines of gateways with and without SCON
)

// Effort is the amount of measuring for the figures.
type Effort struct {
	Duration time.Duration // of each round at the paper's rate; half of it elsewhere
	Repeats  int
	Nodes    []int
	Gateways []int
}

var (
	// Full is the effort of the committed results.
	Full = Effort{4 * time.Second, 5, []int{1, 2, 4, 8, 16, 32, 64}, []int{1, 2, 4, 8}}
	// Quick only shows that everything works.
	Quick = Effort{500 * time.Millisecond, 3, []int{1, 4, 64}, []int{1, 2}}
)

// experiments returns the experiments with their options.
func (e Effort) experiments() []struct {
	name string
	o    Options
} {
	half := e.Duration / 2
	return []struct {
		name string
		o    Options
	}{
		{paced, Options{Nodes: e.Nodes, Rate: Rate, Duration: e.Duration, Repeats: e.Repeats, Pin: PinCore}},
		{fullCore, Options{Nodes: e.Nodes, Duration: half, Repeats: 3, Pin: PinCore}},
		{fullNone, Options{Nodes: e.Nodes, Duration: half, Repeats: 3, Pin: PinNone}},
		{gatewayed, Options{Nodes: e.Gateways, Express: true, Rate: Rate, Duration: half, Repeats: e.Repeats, Pin: PinCore}},
	}
}

// MeasureFigures measures the paper's figures and draws them. The results go to dir
// as JSON, the plots to dir/latency, and the tables to dir/latency.md. When ctx
// ends, it keeps what is finished.
func MeasureFigures(ctx context.Context, dir string, e Effort, progress func(experiment string) bench.Progress) error {
	for _, x := range e.experiments() {
		x.o.Progress = progress(x.name)
		x.o.Dir = filepath.Join(dir, filesDir, x.name)
		r, err := Run(ctx, x.o)
		if err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		if err := r.WriteFile(filepath.Join(dir, x.name+".json")); err != nil {
			return err
		}
	}
	return DrawFigures(dir)
}

// filesDir is the folder of plots and histograms, beside the results.
const filesDir = "latency"

// summariesFile has the summaries of experiments whose results are not in the folder.
const summariesFile = "latencies.json"

// readResults reads the results in a folder, by the experiments' names.
func readResults(dir string) (found map[string]*Result, err error) {
	summaries, err := bench.ReadSummaries(filepath.Join(dir, summariesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	found = map[string]*Result{}
	for _, name := range []string{paced, fullCore, fullNone, gatewayed} {
		r, err := ReadFile(filepath.Join(dir, name+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			if summaries[name] == nil {
				continue
			}
			r, err = Parse(summaries[name])
		}
		if err != nil {
			return nil, err
		}
		found[name] = r
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no results of \"scon latency figures\"", dir)
	}
	return found, nil
}

// DrawFigures draws the plots and the report of the results in a folder. For
// summaries it writes the report alone.
func DrawFigures(dir string) error {
	found, err := readResults(dir)
	if err != nil {
		return err
	}
	for _, r := range found {
		if r.Summary {
			return writeReport(dir, found)
		}
	}
	plots, err := allPlots(dir, found)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, filesDir), 0o755); err != nil {
		return err
	}
	if err := figures.DrawPlots(plots); err != nil {
		return err
	}
	if chart, ok := highestRates(dir, found); ok {
		if err := figures.DrawCharts([]figures.Chart{chart}); err != nil {
			return err
		}
	}
	return writeReport(dir, found)
}

// plotFile returns the plot's file of a figure.
func plotFile(dir, figure string) string { return filepath.Join(dir, filesDir, "fig"+figure+".png") }

// allPlots returns the plots of the paper's figures that were measured.
func allPlots(dir string, found map[string]*Result) (plots []figures.Plot, err error) {
	if r := found[fullCore]; r != nil {
		plots = append(plots, lossCurves(plotFile(dir, "3"), r), hdr(plotFile(dir, "5-core"), "at the highest rate, one CPU", lines(r, "", nil)))
	}
	if r := found[fullNone]; r != nil {
		plots = append(plots, hdr(plotFile(dir, "5-any"), "at the highest rate, any CPU", lines(r, "", nil)))
	}
	if core, any := found[fullCore], found[fullNone]; core != nil && any != nil {
		short := func(nodes int) bool { return nodes <= 8 }
		plots = append(plots, hdr(plotFile(dir, "6"), "at the highest rate, one CPU or any",
			append(lines(core, ", one", short), lines(any, ", any", short)...)))
	}
	if r := found[paced]; r != nil {
		plots = append(plots, hdr(plotFile(dir, "7"), fmt.Sprintf("%.1f kpackets/s", Rate/1000.0), lines(r, "", nil)))
		worst, err := worstOverTime(dir, r)
		if err != nil {
			return nil, err
		}
		plots = append(plots, worst)
	}
	if r := found[gatewayed]; r != nil {
		plots = append(plots, hdr(plotFile(dir, "-express"), "lines of gateways, with and without SCON", lines(r, "", nil)))
	}
	return plots, nil
}

// lossCurves returns the paper's Fig. 3.
func lossCurves(file string, r *Result) figures.Plot {
	p := figures.Plot{File: file, Title: "Fig. 3: loss by rate", X: "kpackets/s", Y: "loss, %", LogX: true}
	for _, mode := range r.Order {
		c := r.Details[mode].Curve
		if c == nil {
			continue
		}
		l := figures.Line{Name: mode}
		for _, point := range c.Points {
			l.X, l.Y = append(l.X, point.Rate/1000), append(l.Y, 100*point.Loss)
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}

// lines returns the lines of an HDR diagram: one distribution per mode whose name
// has the suffix and whose length is wanted; nil wants all lengths.
func lines(r *Result, suffix string, wanted func(nodes int) bool) (lines []figures.Line) {
	for _, mode := range r.Order {
		d := r.Details[mode]
		if wanted != nil && !wanted(d.Nodes) {
			continue
		}
		l := figures.Line{Name: mode + suffix}
		for i, point := range d.Distribution {
			x := 1 / (1 - point.P)
			if math.IsInf(x, 0) { // the last percentile
				x = l.X[i-1] * math.Pow(10, 0.1)
			}
			l.X, l.Y = append(l.X, x), append(l.Y, point.US)
		}
		lines = append(lines, l)
	}
	return lines
}

// hdr returns an HDR diagram, like the paper's Fig. 5 to 7.
func hdr(file, title string, lines []figures.Line) figures.Plot {
	return figures.Plot{File: file, Title: "Latency, " + title, X: "percentile", Y: "us",
		LogX: true, LogY: true, Percentiles: true, Lines: lines}
}

// highestRates returns the paper's Fig. 4.
func highestRates(dir string, found map[string]*Result) (figures.Chart, bool) {
	c := figures.Chart{File: plotFile(dir, "4"), Title: "Fig. 4: highest rate without loss", X: "line", Y: "kpackets/s"}
	for _, of := range []struct{ name, label string }{{fullNone, "any CPU"}, {fullCore, "one CPU"}} {
		r := found[of.name]
		if r == nil {
			return c, false
		}
		s := figures.Series{Name: of.label}
		c.Groups = r.Order
		for _, mode := range r.Order {
			rate := 0.0
			if curve := r.Details[mode].Curve; curve != nil {
				rate = curve.LossFree / 1000
			}
			s.Values = append(s.Values, rate)
		}
		c.Series = append(c.Series, s)
	}
	return c, len(c.Series[0].Values) == len(c.Series[1].Values)
}

// shownOverTime are the modes of the paper's Fig. 8.
var shownOverTime = []string{"n4", "n64"}

// worstOverTime returns the paper's Fig. 8, from the files that the measurement
// wrote.
func worstOverTime(dir string, r *Result) (figures.Plot, error) {
	p := figures.Plot{File: plotFile(dir, "8"), Title: fmt.Sprintf("Fig. 8: the %d worst latencies, %.1f kpackets/s", worstPackets, Rate/1000.0),
		X: "s", Y: "us", LogY: true}
	for _, mode := range shownOverTime {
		if r.Details[mode] == nil {
			continue
		}
		f, err := os.Open(filepath.Join(dir, filesDir, paced, mode+"-worst.csv"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return p, err
		}
		defer f.Close()
		rows, err := csv.NewReader(f).ReadAll()
		if err != nil {
			return p, fmt.Errorf("read the worst latencies of %s: %w", mode, err)
		}
		l := figures.Line{Name: mode, Points: true}
		for _, row := range rows[min(1, len(rows)):] {
			x, xErr := strconv.ParseFloat(row[0], 64)
			y, yErr := strconv.ParseFloat(row[1], 64)
			if err := errors.Join(xErr, yErr); err != nil {
				return p, fmt.Errorf("read the worst latencies of %s: %w", mode, err)
			}
			l.X, l.Y = append(l.X, x), append(l.Y, y)
		}
		p.Lines = append(p.Lines, l)
	}
	return p, nil
}

// writeReport writes latency.md: all tables, beside the plots.
func writeReport(dir string, found map[string]*Result) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Latencies of this machine\n\n"+
		"Drawn by `scon latency figures` from the results beside this file; [docs/latency.md](../docs/latency.md) says how\n"+
		"they were obtained and what the paper has instead.\n\n%s", findingsTable(found))
	for _, section := range []struct {
		name, title string
		plots       []string
	}{
		{paced, "At the paper's rate (Fig. 7 and 8)", []string{"7", "8"}},
		{fullCore, "At the highest rate without loss, on one CPU (Fig. 3 to 6)", []string{"3", "4", "5-core", "6"}},
		{fullNone, "At the highest rate without loss, on any CPU (Fig. 4 to 6)", []string{"5-any"}},
		{gatewayed, "Lines of gateways, with and without SCON", []string{"-express"}},
	} {
		r := found[section.name]
		fmt.Fprintf(&text, "\n## %s\n\n", section.title)
		if r == nil {
			fmt.Fprintf(&text, "Not measured yet.\n")
			continue
		}
		for _, plot := range section.plots {
			if _, err := os.Stat(plotFile(dir, plot)); err == nil {
				fmt.Fprintf(&text, "![%s](%s/fig%s.png)\n", strings.TrimPrefix(plot, "-"), filesDir, plot)
			}
		}
		fmt.Fprintln(&text)
		if err := r.WriteTable(&text); err != nil {
			return err
		}
	}
	return output.Write(filepath.Join(dir, "latency.md"), text.Bytes())
}
