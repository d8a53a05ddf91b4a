package latency

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/nstest"
)

// With SCON, packets through gateways go express, and none is lost.
func TestGateways(t *testing.T) {
	open(t, 1)
	check := nstest.Left(t)
	r, err := Run(t.Context(), Options{Nodes: []int{1, 2}, Express: true, Rate: 1000, Duration: 500 * time.Millisecond,
		Repeats: 1, Pin: PinNone, Progress: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	check(fmt.Sprintf("scon-latency%d-", os.Getpid()))
	if want := []string{"n1", "n1_express", "n2", "n2_express"}; !slices.Equal(r.Order, want) || r.Line != Gateways {
		t.Errorf("modes %v of %s", r.Order, r.Line)
	}
	for _, mode := range r.Order {
		d := r.Details[mode]
		if round := d.Rounds[0]; round.Arrived+int(round.Skipped) != 500 {
			t.Errorf("%s: %+v", mode, round)
		}
		express := strings.HasSuffix(mode, expressSuffix)
		if express != (d.ExpressShare > 0) || d.ExpressShare > 1 {
			t.Errorf("%s: a share of %v went express", mode, d.ExpressShare)
		}
	}
	for _, suffix := range []string{"", expressSuffix} {
		if _, ok := r.PerNode(suffix); !ok {
			t.Errorf("%q has no cost for a node", suffix)
		}
	}
}

// The page of a result has its distribution and, after a ramp, its losses.
func TestPage(t *testing.T) {
	r := result(t)
	for _, want := range []string{"Latency by percentile, Table", "Latency by percentile, Loss by rate, Table"} {
		p, err := r.Page()
		if err != nil {
			t.Fatal(err)
		}
		var titles []string
		for _, s := range p.Sections {
			titles = append(titles, s.Title)
			if (s.SVG == "") != (s.Title == "Table") || (s.Text == "") == (s.Title == "Table") {
				t.Errorf("section %s: %d bytes of SVG, %d of text", s.Title, len(s.SVG), len(s.Text))
			}
		}
		if got := strings.Join(titles, ", "); got != want {
			t.Errorf("sections %s, want %s", got, want)
		}
		r.Details["n1"].Curve = &Curve{Points: []Point{{1000, 0, []float64{0}}, {2000, 0.3, []float64{0.3}}}, LossFree: 1000}
	}
}

// The figures are drawn from the files of results alone.
func TestFigures(t *testing.T) {
	open(t, 1)
	dir := t.TempDir()
	if err := DrawFigures(dir); err == nil || !strings.Contains(err.Error(), "has no results") {
		t.Errorf("an empty folder: %v", err)
	}
	r := result(t)
	r.Details["n1"].Curve = &Curve{Points: []Point{{1000, 0, []float64{0}}, {2000, 0.3, []float64{0.3}}}, LossFree: 1000}
	found := map[string]*Result{paced: r, fullCore: r, fullNone: r, gatewayed: r}
	plots, err := allPlots(dir, found)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, p := range plots {
		files = append(files, filepath.Base(p.File))
	}
	if want := []string{"fig3.png", "fig5-core.png", "fig5-any.png", "fig6.png", "fig7.png", "fig8.png", "fig-express.png"}; !slices.Equal(files, want) {
		t.Errorf("plots %v, want %v", files, want)
	}
	if l := plots[0].Lines; len(l) != 1 || !slices.Equal(l[0].X, []float64{1, 2}) || !slices.Equal(l[0].Y, []float64{0, 30}) {
		t.Errorf("loss curves %+v", l)
	}
	if l := plots[4].Lines[0]; len(l.X) != 32 || l.X[0] != 1 || l.X[10] < 9.99 || l.X[10] > 10.01 {
		t.Errorf("HDR diagram %+v", l)
	}
	chart, ok := highestRates(dir, found)
	if !ok || !slices.Equal(chart.Series[0].Values, []float64{1, 0, 0}) {
		t.Errorf("rates %+v", chart)
	}
	if err := writeReport(dir, found); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "latency.md"))
	if err != nil || !strings.Contains(string(text), "n1: no loss up to 1000 packets/s.") || strings.Contains(string(text), "Not measured yet") {
		t.Errorf("%v: the report is\n%s", err, text)
	}
}

// Every experiment of the figures can be measured.
func TestEffortsAreWhole(t *testing.T) {
	for _, e := range []Effort{Quick, Full} {
		names := map[string]bool{}
		for _, p := range e.experiments() {
			names[p.name] = true
			if p.o.Duration <= 0 || p.o.Repeats < 3 || len(p.o.Nodes) < 2 {
				t.Errorf("%s: %+v", p.name, p.o)
			}
		}
		if len(names) != 4 {
			t.Errorf("experiments %v", names)
		}
	}
}
