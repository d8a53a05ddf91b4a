package profile

import (
	"encoding/xml"
	"os"
	"strconv"
	"strings"
	"testing"
)

// element is an element of an SVG document.
type element struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Inside  []element  `xml:",any"`
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func parseSVG(t *testing.T, text string) (root element) {
	t.Helper()
	if err := xml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return root
}

// Frames are as wide as their times, and each row of a path is as wide as the path.
func TestSVG(t *testing.T) {
	p := example()
	perRow, total := map[string]float64{}, map[string]float64{}
	for _, e := range parseSVG(t, p.SVG()).Inside {
		if e.XMLName.Local != "g" {
			continue
		}
		rect := e.Inside[1]
		width, err := strconv.ParseFloat(rect.attr("width"), 64)
		if err != nil {
			t.Fatal(err)
		}
		perRow[rect.attr("y")] += width
		total[e.Inside[0].Text] = width
	}
	if len(perRow) != 3*len(p.Paths) {
		t.Errorf("%d rows of %d paths", len(perRow), len(p.Paths))
	}
	for i, w := range p.Paths {
		want := total[w.Name+": "+micros(w.TotalNS)+" us, "+micros(w.TotalNS)+" us"]
		if want <= 0 {
			t.Fatalf("no frame of %s in %v", w.Name, total)
		}
		for row := range 3 {
			y := strconv.Itoa(svgTop + i*(3*svgRow+svgPathGap) + row*svgRow)
			if got := perRow[y]; got < want-1 || got > want+1 {
				t.Errorf("%s: row %d is %.1f wide, want %.1f", w.Name, row, got, want)
			}
		}
	}
}

// Names of containers and of chains are text, whatever they contain.
func TestSVGOfHostileNames(t *testing.T) {
	p := example()
	p.Container = `</text><script>alert(1)</script>`
	p.Paths[0].Layers[0].Name = `Netfilter: "><script>`
	for _, e := range parseSVG(t, p.SVG()).Inside {
		if e.XMLName.Local == "script" {
			t.Error("a name has become a script")
		}
	}
	if page := p.Page().HTML(); strings.Contains(page, "<script") {
		t.Error("a name has become a script of the page")
	}
}

// The README's picture is that of the committed result.
func TestPictureShowsTheResult(t *testing.T) {
	p, err := ReadFile("../results/profile.json")
	if err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile("../../docs/packet-way.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(picture) != p.SVG() {
		t.Error("docs/packet-way.svg differs from what \"scon profile show lab/results/profile.json --svg docs/packet-way.svg\" draws")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range p.Paths {
		if first, _, _ := strings.Cut(string(readme), "](docs/packet-way.svg)"); !strings.Contains(first, micros(w.TotalNS)) {
			t.Errorf("the text of the README's picture lacks %s us of %s", micros(w.TotalNS), w.Name)
		}
	}
}

func TestFitting(t *testing.T) {
	for _, c := range []struct {
		name    string
		letters int
		want    string
	}{
		{"bridge", 6, "bridge"},
		{"bridge", 5, ""},
		{"veth: queue of the other end", 28, "veth: queue of the other end"},
		{"veth: queue of the other end", 27, "queue of the other end"},
		{"veth: queue of the other end", 8, "queue of"},
		{"veth: queue of the other end", 4, ""},
		{"bridge", -1, ""},
	} {
		if got := fitting(c.name, (float64(c.letters)+0.5)*svgLetter+8); got != c.want {
			t.Errorf("%d letters of %q: %q, want %q", c.letters, c.name, got, c.want)
		}
	}
}
