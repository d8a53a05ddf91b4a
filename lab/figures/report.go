package figures

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/scon-project/scon/lab/bench"
)

// alike is the largest relative deviation from the paper's number that counts as
// equal.
const alike = 0.1

// writeReport writes the results beside the paper's numbers, in Markdown.
func writeReport(w io.Writer, found results) error {
	p := &printer{w: w}
	p.printf("# The paper's figures and ours\n\n")
	p.printf("Drawn by `scon bench figures` from the results beside this file; [docs/paper.md](../docs/paper.md) says how\n")
	p.printf("they were obtained. \"Paper\" is what its text says of a Raspberry Pi 4 and its own SCON (\"express\" there, too).\n")
	p.printf("Ours are ratios of medians with 95 %% bootstrap intervals; a mean of several ratios has none.\n")
	if found.summaries {
		p.printf("The plots are not kept: that command draws them beside the results that it takes.\n")
	} else {
		p.printf("Plots show medians, their whiskers the middle half of the samples.\n")
	}
	p.flowtable(found)
	for _, f := range figures {
		p.figure(f, found)
	}
	p.elsewhere()
	p.printf("\n## All that was measured\n")
	heading := func(source string) {
		file := source
		if r := found.experiments[source]; r != nil && r.Summary {
			file = strings.TrimSuffix(summariesFile, ".json")
		}
		p.printf("\n### [%s](%s.json)\n\n", source, file)
	}
	if found.profile != nil && p.err == nil {
		heading(profileSource)
		p.err = errors.Join(p.err, found.profile.WriteTable(w))
	}
	for _, s := range sources {
		if r := found.experiments[s.name]; r != nil {
			heading(s.name)
			if p.err == nil {
				p.err = r.WriteTable(w)
			}
		}
	}
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// figure writes the section of a figure, also if nothing was measured.
func (p *printer) figure(f figure, found results) {
	p.printf("\n## Fig. %s: %s\n\n", f.id, f.title)
	if !found.has(f.sources) {
		p.printf("Not measured yet: `scon bench figures %s`.\n", f.id)
		return
	}
	p.printf("%s\n\n", f.how)
	if slices.Contains(f.sources, profileSource) && !found.summaries {
		p.printf("![Fig. %s: %s](%s/%s)\n", f.id, f.title, plotsDir, profilePlot)
	}
	for _, panel := range f.panels {
		if _, ok := panel.chart(found); ok && !found.summaries {
			p.printf("![Fig. %s: %s](%s/%s)\n", panel.id, panel.title, plotsDir, panel.file())
		}
	}
	p.printf("\n| claim | paper | ours | difference |\n| --- | --- | --- | --- |\n")
	for _, c := range f.claims {
		i, ok := c.ours(found)
		if !ok {
			p.printf("| %s | %.2f | - | Not measured in this run. |\n", c.what, c.paper)
			continue
		}
		p.printf("| %s | %.2f | %s | %s |\n", c.what, c.paper, format(i), c.difference(i))
	}
}

// difference returns a sentence that compares ours with the paper's number.
func (c claim) difference(ours bench.Interval) string {
	switch distance := ours.Median/c.paper - 1; {
	case math.Abs(distance) <= alike:
		return "As in the paper."
	case ours.Low <= c.paper && c.paper <= ours.High:
		return "No difference found: the paper's is within our interval."
	case (distance > 0) == c.why.more:
		return direction(distance) + ": " + c.why.text
	default:
		return direction(distance) + ", against what we expect; mind the spread of the samples."
	}
}

func direction(distance float64) string {
	if distance < 0 {
		return "Less than in the paper"
	}
	return "More than in the paper"
}

// flowtable explains why mode flowtable is missing.
func (p *printer) flowtable(found results) {
	for _, r := range found.experiments {
		if len(r.Modes[bench.Flowtable.Name]) > 0 {
			return
		}
	}
	p.printf("The kernel's own fast path, nftables' flowtable: not available on this kernel; `scon bench cost` has it in a guest.\n")
}

// elsewhere lists the figures that are reproduced elsewhere.
func (p *printer) elsewhere() {
	p.printf(`
## Figures that are not here

| figure | why |
| --- | --- |
| 3 | It measures another system (Slim), whose changed sockets need changed applications. |
| 17 | It repeats Fig. 11 on other devices and over Wi-Fi: run ` + "`scon bench figures 11`" + ` there. |
`)
}
