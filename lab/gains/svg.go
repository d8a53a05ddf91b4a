package gains

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/scon-project/scon/lab/output"
)

// Dimensions of the picture, in its own units; a browser scales it.
const (
	width    = 760
	left     = 12
	barsFrom = 150 // labels stand to the left of the bars
	barsMost = 330 // length of the longest bar, whisker included
	row      = 26
	barWidth = 16
	heading  = 26
	gap      = 18
)

// style follows the colours of the system: light or dark.
const style = `
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.note { font-size: 11px; fill: #59636e }
.page { fill: #fff }
.bar { fill: #9aa4af }
.scon { fill: #1a7f37 }
.whisker { stroke: #1f2328; stroke-opacity: .6 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note { fill: #9198a1 } .page { fill: #0d1117 } .bar { fill: #656c76 } .scon { fill: #3fb950 } .whisker { stroke: #e6edf3 }
}
`

// WriteSVG draws the chart into a file.
func (c *Chart) WriteSVG(path string) error { return output.Write(path, []byte(c.SVG())) }

// SVG draws the groups below each other; each has a scale of its own.
func (c *Chart) SVG() string {
	var d strings.Builder
	y := gap
	for _, g := range c.groups {
		y += drawGroup(&d, g, y)
	}
	y += gap
	for _, note := range c.notes() {
		text(&d, left, y, "note", note)
		y += 16
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+
		"\n<style>%s</style>\n<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n",
		width, y, html.EscapeString(c.summary()), style, d.String())
}

// drawGroup draws a group from y on and returns its height.
func drawGroup(d *strings.Builder, g measured, y int) int {
	most := 0.0
	for _, v := range g.values {
		most = max(most, v.High)
	}
	unit := barsMost / most
	text(d, left, y, "title", g.title)
	for i, b := range g.bars {
		v, top := g.values[i], y+10+i*row
		class := "bar"
		if b.scon {
			class = "scon"
		}
		text(d, left, top+13, "", b.label)
		fmt.Fprintf(d, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, barsFrom, top, v.Median*unit, barWidth)
		fmt.Fprintf(d, `<line class="whisker" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n",
			barsFrom+v.Low*unit, top+barWidth/2, barsFrom+v.High*unit, top+barWidth/2)
		text(d, barsFrom+barsMost+10, top+13, "", g.words(i))
	}
	return len(g.bars)*row + heading + gap
}

// words stand behind a bar: its value, and of SCON's what it gains.
func (g measured) words(i int) string {
	value := fmt.Sprintf("%.3g %s", g.values[i].Median*g.scale, g.unit)
	if g.bars[i].scon {
		value += ", " + g.gain(g.ratios[i])
	}
	return value
}

// summary is the picture in words.
func (c *Chart) summary() string {
	var parts []string
	for _, g := range c.groups {
		var bars []string
		for i, b := range g.bars {
			bars = append(bars, b.label+" "+g.words(i))
		}
		parts = append(parts, g.title+": "+strings.Join(bars, ", "))
	}
	return strings.Join(parts, ". ")
}

// notes say how the figures were obtained.
func (c *Chart) notes() []string {
	notes := []string{"Medians; lines are quartiles; of it: of the bar above, with the 95 % bootstrap interval."}
	for _, g := range c.groups {
		if !slices.Contains(notes, g.machine) {
			notes = append(notes, g.machine)
		}
	}
	return notes
}

func text(d *strings.Builder, x, y int, class, words string) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(d, `<text x="%d" y="%d"%s>%s</text>`, x, y, class, html.EscapeString(words))
}
