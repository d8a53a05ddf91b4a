package latency

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/scon-project/scon/lab/figures"
	"github.com/scon-project/scon/lab/page"
)

// Page returns the result for a browser: the distribution of the latencies and, after a
// ramp, the loss by rate.
func (r *Result) Page() (page.Page, error) {
	dir, err := os.MkdirTemp("", "scon-latency-")
	if err != nil {
		return page.Page{}, fmt.Errorf("make a folder for the plots: %w", err)
	}
	defer os.RemoveAll(dir)
	plots := []figures.Plot{hdr(filepath.Join(dir, "hdr.png"), "by percentile", lines(r, "", nil))}
	titles := []string{"Latency by percentile"}
	if loss := lossCurves(filepath.Join(dir, "loss.png"), r); len(loss.Lines) > 0 {
		plots, titles = append(plots, loss), append(titles, "Loss by rate")
	}
	if err := figures.DrawPlots(plots); err != nil {
		return page.Page{}, err
	}
	p := page.Page{Title: "scon latency"}
	for i, plot := range plots {
		svg, err := os.ReadFile(strings.TrimSuffix(plot.File, ".png") + ".svg")
		if err != nil {
			return page.Page{}, fmt.Errorf("read a plot: %w", err)
		}
		p.Sections = append(p.Sections, page.Section{Title: titles[i], SVG: string(svg)})
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return page.Page{}, err
	}
	p.Sections = append(p.Sections, page.Section{Title: "Table", Text: table.String()})
	return p, nil
}
