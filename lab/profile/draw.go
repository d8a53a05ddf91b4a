package profile

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/scon-project/scon/lab/output"
)

// Dimensions of the picture, in pixels.
const (
	textSize   = 15
	margin     = 24
	axisWidth  = 60
	barWidth   = 110
	barGap     = 50
	plotHeight = 560
	keyWidth   = 520
	keyLine    = 22
)

// shades of layers, by the prefix of their names.
var shades = []struct {
	prefix string
	from   color.RGBA
}{
	{"Netfilter", color.RGBA{0xb2, 0x18, 0x2b, 0xff}},
	{"2nd IP", color.RGBA{0xd9, 0x6f, 0x1e, 0xff}},
	{"bridge", color.RGBA{0xe5, 0xb7, 0x2a, 0xff}},
	{"express", color.RGBA{0x6a, 0x3d, 0x9a, 0xff}},
	{"veth", color.RGBA{0x1f, 0x5f, 0xa8, 0xff}},
	{"IP", color.RGBA{0x2c, 0x7a, 0x3f, 0xff}},
	{"", color.RGBA{0x5a, 0x5a, 0x5a, 0xff}},
}

// restOfCall is the frame of that time of the call that no layer accounts for.
var restOfCall = color.RGBA{0xa0, 0xa0, 0xa0, 0xff}

// shadesOf returns the colours of layers: within a kind, each is lighter than the
// one before.
func shadesOf(names []string) map[string]color.RGBA {
	colors, used := make(map[string]color.RGBA), make(map[string]int)
	for _, name := range names {
		for _, s := range shades {
			if strings.HasPrefix(name, s.prefix) {
				colors[name] = lighter(s.from, 0.17*float64(used[s.prefix]))
				used[s.prefix]++
				break
			}
		}
	}
	return colors
}

// lighter mixes a colour with white, up to four fifths.
func lighter(c color.RGBA, share float64) color.RGBA {
	share = min(share, 0.8)
	mix := func(x uint8) uint8 { return uint8(float64(x) + share*(255-float64(x))) }
	return color.RGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

// WritePNG draws the paths as stacked bars, like Fig. 4a and 13 of the paper.
func (p *Profile) WritePNG(path string) error {
	picture, err := p.draw()
	if err != nil {
		return fmt.Errorf("draw the profile: %w", err)
	}
	var file bytes.Buffer
	if err := png.Encode(&file, picture); err != nil {
		return fmt.Errorf("draw the profile: %w", err)
	}
	return output.Write(path, file.Bytes())
}

// canvas is a picture with text.
type canvas struct {
	*image.RGBA
	face font.Face
}

func (p *Profile) draw() (image.Image, error) {
	parsed, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, err
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: textSize, DPI: 72})
	if err != nil {
		return nil, err
	}
	defer face.Close()

	names := layerNames(p.Paths)
	plotWidth := axisWidth + barGap + len(p.Paths)*(barWidth+barGap)
	height := max(plotHeight, len(names)*keyLine) + 4*margin
	c := canvas{image.NewRGBA(image.Rect(0, 0, 2*margin+plotWidth+keyWidth, height)), face}
	c.fill(c.Bounds(), color.White)

	most := 0.0
	for _, w := range p.Paths {
		most = max(most, w.TotalNS/1000, w.CallNS/1000)
	}
	bottom := height - 2*margin
	perMicro := plotHeight / max(most*1.05, 0.001)
	c.axis(most, perMicro, bottom, margin+plotWidth)
	colors := shadesOf(names)
	for i, w := range p.Paths {
		x := margin + axisWidth + barGap + i*(barWidth+barGap)
		c.bar(w, names, colors, x, bottom, perMicro)
	}
	for i, name := range names { // from the bottom, as in the bars
		y := bottom - (i+1)*keyLine
		x := 2*margin + plotWidth
		c.fill(image.Rect(x, y+4, x+14, y+18), colors[name])
		c.write(x+22, y+16, name)
	}
	c.write(margin, margin, "us for one packet; framed: the rest of the call that sends it")
	return c, nil
}

// axis draws lines at round times.
func (c canvas) axis(most, perMicro float64, bottom, right int) {
	step := roundStep(most)
	for k := 0; float64(k)*step <= most*1.05; k++ {
		y := bottom - int(float64(k)*step*perMicro)
		c.fill(image.Rect(margin+axisWidth, y, right, y+1), color.Gray{0xd8})
		c.writeRight(margin+axisWidth-6, y+5, fmt.Sprintf("%.3g", float64(k)*step))
	}
}

// roundStep returns a round number of us that divides an axis of that length into a few.
func roundStep(most float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(max(most, 0.01))))
	for _, finer := range []float64{0.2, 0.5} {
		if most/step < 5*finer*2 {
			return step * finer
		}
	}
	return step
}

// bar draws a path, its first layer at the bottom and its total above.
func (c canvas) bar(w Path, names []string, colors map[string]color.RGBA, x, bottom int, perMicro float64) {
	var done float64 // us
	for _, name := range names {
		ns, _ := w.layer(name)
		if ns <= 0 {
			continue
		}
		low := bottom - int(done*perMicro)
		done += ns / 1000
		c.fill(image.Rect(x, bottom-int(done*perMicro), x+barWidth, low), colors[name])
	}
	total := micros(w.TotalNS)
	if call := w.CallNS / 1000; call > done {
		top, low := bottom-int(call*perMicro), bottom-int(done*perMicro)
		c.fill(image.Rect(x, top, x+barWidth, low), restOfCall)
		c.fill(image.Rect(x+1, top+1, x+barWidth-1, low), color.White)
		total, done = total+" of "+micros(w.CallNS), call
	}
	c.writeMiddle(x+barWidth/2, bottom-int(done*perMicro)-6, total)
	c.writeMiddle(x+barWidth/2, bottom+textSize+6, w.Name)
}

func (c canvas) fill(r image.Rectangle, with color.Color) {
	draw.Draw(c, r, image.NewUniform(with), image.Point{}, draw.Src)
}

func (c canvas) write(x, y int, text string) {
	d := font.Drawer{Dst: c, Src: image.Black, Face: c.face, Dot: fixed.P(x, y)}
	d.DrawString(text)
}

func (c canvas) writeRight(x, y int, text string) {
	c.write(x-font.MeasureString(c.face, text).Round(), y, text)
}

func (c canvas) writeMiddle(x, y int, text string) {
	c.write(x-font.MeasureString(c.face, text).Round()/2, y, text)
}
