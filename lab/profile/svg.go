package profile

import (
	"fmt"
	"html"
	"strings"

	"github.com/scon-project/scon/lab/output"
)

// Dimensions of the picture, in its own units; a browser scales it.
const (
	svgWidth   = 960
	svgLeft    = 12
	svgRow     = 30
	svgLetter  = 6.4 // mean width of a letter
	svgPathGap = 22
	svgTop     = 34
	svgAxis    = 28
)

// svgStyle follows the colours of the system: light or dark.
const svgStyle = `
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.in { font-size: 11px; fill: #fff }
.page { fill: #fff; stroke: none }
.grid { stroke: #8c959f; stroke-opacity: .35 }
.frame { stroke: #fff }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .in { fill: #fff } .page { fill: #0d1117 } .frame { stroke: #0d1117 } }
`

// kinds of layers, by the prefix of their names, from the top of the path's picture. Each
// colour has a contrast of 4.5 or more to white text.
var kinds = []struct{ prefix, name, colour string }{
	{"Netfilter", "Netfilter", "#b2182b"},
	{"2nd IP", "2nd IP layer", "#a8480f"},
	{"bridge", "bridge", "#7a5c00"},
	{"express", "express", "#6a3d9a"},
	{"veth", "veth", "#1f5fa8"},
	{"IP", "IP", "#2c7a3f"},
	{"wire", "wire", "#4d5a66"},
	{"neighbour", "neighbour", "#66595a"},
	{"", "other", "#5a5a5a"},
}

func kindOf(layer string) (name, colour string) {
	for _, k := range kinds {
		if strings.HasPrefix(layer, k.prefix) {
			return k.name, k.colour
		}
	}
	panic("unreachable: every name has the prefix \"\"")
}

// WriteSVG draws the paths below each other on one axis of time: a path's frames lie above
// its layers, as in a flame graph.
func (p *Profile) WriteSVG(path string) error { return output.Write(path, []byte(p.SVG())) }

// SVG returns what WriteSVG writes.
func (p *Profile) SVG() string {
	most := 0.0
	for _, w := range p.Paths {
		most = max(most, w.TotalNS)
	}
	d := drawing{perNS: (svgWidth - 2*svgLeft) / max(most, 1)}
	height := svgTop + len(p.Paths)*(3*svgRow+svgPathGap) + svgAxis
	fmt.Fprintf(&d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n<style>%s</style>\n<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n",
		svgWidth, height, html.EscapeString(p.summary()), svgStyle)
	d.text(svgLeft, 18, "", p.heading())
	d.axis(most, svgTop, height-svgAxis+4)
	y := svgTop
	for _, w := range p.Paths {
		d.path(w, y)
		y += 3*svgRow + svgPathGap
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// heading says what the picture shows.
func (p *Profile) heading() string {
	if p.Container != "" {
		return "One packet of " + p.Container + ": time in each layer"
	}
	return fmt.Sprintf("One packet of %d bytes: time in each layer", p.MessageBytes)
}

// summary is the picture in words.
func (p *Profile) summary() string {
	var paths []string
	for _, w := range p.Paths {
		paths = append(paths, fmt.Sprintf("%s %s us", w.Name, micros(w.TotalNS)))
	}
	return p.heading() + ": " + strings.Join(paths, ", ")
}

// drawing is an SVG document that grows.
type drawing struct {
	strings.Builder
	perNS float64
}

// path draws the frames of a path: all of it, kinds of layers, layers.
func (d *drawing) path(w Path, y int) {
	d.frame(0, w.TotalNS, y, "#3d444d", fmt.Sprintf("%s: %s us", w.Name, micros(w.TotalNS)))
	var at, since, of float64
	var kind, colour string
	for _, l := range w.Layers {
		name, shade := kindOf(l.Name)
		if name != kind {
			d.frame(since, of, y+svgRow, colour, kind)
			kind, colour, since, of = name, shade, at, 0
		}
		d.frame(at, l.NS, y+2*svgRow, shade, l.Name)
		at += l.NS
		of += l.NS
	}
	d.frame(since, of, y+svgRow, colour, kind)
}

// frame draws what begins at a time and takes ns. Pointing at it shows its whole name.
func (d *drawing) frame(begin, ns float64, y int, colour, name string) {
	if ns <= 0 {
		return
	}
	x, width := svgLeft+begin*d.perNS, ns*d.perNS
	fmt.Fprintf(d, `<g><title>%s, %s us</title><rect class="frame" x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`,
		html.EscapeString(name), micros(ns), x, y, width, svgRow, colour)
	if label := fitting(name, width); label != "" {
		d.text(x+4, y+19, "in", label)
	}
	d.WriteString("</g>\n")
}

// fitting returns as much of a layer's name as fits into a width: its parts from the end
// of its kind on, or whole words from the beginning.
func fitting(name string, width float64) string {
	letters := int((width - 8) / svgLetter)
	if len(name) <= letters {
		return name
	}
	if _, rest, ok := strings.Cut(name, ": "); ok {
		name = rest
	}
	for len(name) > letters {
		cut := strings.LastIndexAny(name, " :,")
		if cut < 0 {
			return ""
		}
		name = strings.TrimRight(name[:cut], " :,")
	}
	return name
}

func (d *drawing) text(x float64, y int, class, text string) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(d, `<text x="%.1f" y="%d"%s>%s</text>`, x, y, class, html.EscapeString(text))
}

// axis draws lines at round times.
func (d *drawing) axis(most float64, top, bottom int) {
	step := roundStep(most / 1000)
	for k := 0; float64(k)*step*1000 <= most; k++ {
		x := svgLeft + float64(k)*step*1000*d.perNS
		fmt.Fprintf(d, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", x, top-4, x, bottom-svgPathGap)
		d.text(x, bottom-4, "", fmt.Sprintf("%.3g us", float64(k)*step))
	}
	d.WriteString("\n")
}
