package helper

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/lab/figures"
)

// run executes an order like the program does.
func run(t *testing.T, verb string, order any) (figures.Report, error) {
	t.Helper()
	in, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := carryOut([]string{verb}, bytes.NewReader(in), &out); err != nil {
		return figures.Report{}, err
	}
	var report figures.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report, nil
}

func TestHTTPLoadCountsAndTimesRequests(t *testing.T) {
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.Write(make([]byte, 64))
	}))
	defer server.Close()
	report, err := run(t, "http", figures.HTTPOrder{URL: server.URL, Rate: 200, Connections: 2, Duration: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Fortio sends one more request on each connection, to warm up.
	if report.Messages == 0 || int(served.Load()) < report.Messages {
		t.Errorf("%d requests counted, %d served", report.Messages, served.Load())
	}
	if report.Mean <= 0 || report.P50 > report.P99 || report.P99 > report.Max || report.CPU <= 0 || report.Elapsed <= 0 {
		t.Errorf("report %+v", report)
	}
}

func TestHTTPLoadRefusesOtherThanPages(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, err := run(t, "http", figures.HTTPOrder{URL: server.URL, Rate: 100, Connections: 1, Duration: 50 * time.Millisecond})
	if err == nil {
		t.Error("a 404 was counted as a page")
	}
}

func TestDrawnChartsArePictures(t *testing.T) {
	dir := t.TempDir()
	charts := []figures.Chart{
		{
			File: filepath.Join(dir, "grouped.png"), Title: "grouped", X: "size", Y: "us", Groups: []string{"32", "64"},
			Series: []figures.Series{
				{Name: "native", Values: []float64{1, 2}, Low: []float64{0.5, 1}, High: []float64{1.5, 3}},
				{Name: "container", Values: []float64{2, 4}},
			},
		},
		{
			File: filepath.Join(dir, "stacked.png"), Groups: []string{"native"}, Stacked: true,
			Series: []figures.Series{{Name: "softirq", Values: []float64{3}}, {Name: "rest", Values: []float64{4}}},
		},
	}
	if _, err := run(t, "draw", charts); err != nil {
		t.Fatal(err)
	}
	for _, c := range charts {
		wantSVG(t, c.File, append(c.Groups, c.Title)...)
		colours := coloursOf(t, c.File)
		for i := range c.Series {
			if r, g, b, a := shades[i].RGBA(); !hasColour(colours, r, g, b, a) {
				t.Errorf("%s lacks the bars of %s", c.File, c.Series[i].Name)
			}
		}
	}
}

func TestDrawnPlotsArePictures(t *testing.T) {
	dir := t.TempDir()
	plots := []figures.Plot{
		{
			File: filepath.Join(dir, "hdr.png"), Title: "hdr", X: "percentile", Y: "us", LogX: true, LogY: true, Percentiles: true,
			Lines: []figures.Line{
				{Name: "n1", X: []float64{1, 10, 100}, Y: []float64{1, 2, 30}},
				{Name: "n2", X: []float64{1, 10, 100}, Y: []float64{3, 4, 90}},
				{Name: "nothing"},
			},
		},
		{
			File: filepath.Join(dir, "points.png"), X: "s", Y: "us", LogY: true,
			// 0 cannot be shown on a logarithmic axis.
			Lines: []figures.Line{{Name: "n4", Points: true, X: []float64{0, 1, 2}, Y: []float64{0, 5, 7}}},
		},
	}
	if _, err := run(t, "plot", plots); err != nil {
		t.Fatal(err)
	}
	for _, p := range plots {
		wantSVG(t, p.File, p.X, p.Y)
		colours := coloursOf(t, p.File)
		for i, l := range p.Lines {
			if r, g, b, a := hues[i].RGBA(); len(l.X) > 0 && !hasColour(colours, r, g, b, a) {
				t.Errorf("%s lacks %s", p.File, l.Name)
			}
		}
	}
}

// wantSVG checks that the SVG beside a picture is well-formed and has texts.
func wantSVG(t *testing.T, file string, texts ...string) {
	t.Helper()
	content, err := os.ReadFile(strings.TrimSuffix(file, ".png") + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	var root struct{ XMLName xml.Name }
	if err := xml.Unmarshal(content, &root); err != nil || root.XMLName.Local != "svg" {
		t.Errorf("the SVG of %s: %v, root %q", file, err, root.XMLName.Local)
	}
	for _, text := range texts {
		if text != "" && !strings.Contains(string(content), ">"+text+"<") {
			t.Errorf("the SVG of %s lacks the text %q", file, text)
		}
	}
}

// coloursOf returns the colours of a picture.
func coloursOf(t *testing.T, file string) map[any]bool {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	colours := map[any]bool{}
	for x := range picture.Bounds().Dx() {
		for y := range picture.Bounds().Dy() {
			colours[picture.At(x, y)] = true
		}
	}
	return colours
}

func hasColour(colours map[any]bool, r, g, b, a uint32) bool {
	for c := range colours {
		cr, cg, cb, ca := c.(interface{ RGBA() (r, g, b, a uint32) }).RGBA()
		if cr == r && cg == g && cb == b && ca == a {
			return true
		}
	}
	return false
}

func TestUnknownOrdersAreRefused(t *testing.T) {
	for _, args := range [][]string{nil, {"dance"}, {"http", "draw"}} {
		if err := carryOut(args, strings.NewReader("{}"), &bytes.Buffer{}); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	if err := carryOut([]string{"draw"}, strings.NewReader("not json"), &bytes.Buffer{}); err == nil {
		t.Error("an invalid order was accepted")
	}
}
