package profile

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteTable writes the profile for people, in Markdown: a column for each way,
// a row for each layer, then what the rules of the host cost, and what the
// measurement did.
func (p *Profile) WriteTable(w io.Writer) error {
	var text string
	if len(p.Ways) > 0 {
		text = p.tables() + "\n"
	}
	_, err := io.WriteString(w, text+p.footnote())
	return err
}

func (p *Profile) tables() string {
	head := []string{"layer, us"}
	for _, way := range p.Ways {
		head = append(head, way.Name)
	}
	rows := [][]string{head}
	row := func(name string, cell func(Way) string) {
		cells := []string{name}
		for _, way := range p.Ways {
			cells = append(cells, cell(way))
		}
		rows = append(rows, cells)
	}
	for _, name := range layerNames(p.Ways) {
		row(name, func(way Way) string {
			ns, ok := way.layer(name)
			if !ok {
				return "-"
			}
			return micros(ns)
		})
	}
	row("**all layers**", func(way Way) string { return "**" + micros(way.TotalNS) + "**" })
	if slices.ContainsFunc(p.Ways, func(way Way) bool { return way.EndToEndNS > 0 }) {
		row("by two waypoints at the ends", func(way Way) string { return micros(way.EndToEndNS) })
		row("the whole call, without waypoints", func(way Way) string { return micros(way.CallNS) })
	}
	row("quartiles' distance", func(way Way) string { return percent(way.Spread) })
	row("packets followed", func(way Way) string { return fmt.Sprint(way.Packets) })
	row("of them this way", func(way Way) string { return percent(way.Share) })
	text := markdown(rows)
	if len(p.Rules) > 0 {
		rules := [][]string{{"rules of the host, the dearest first", "us", "of the way"}}
		for _, r := range p.Rules {
			rules = append(rules, []string{
				r.Hook + ": " + strings.Join(r.Chains, ", "), micros(r.NS), fmt.Sprintf("%s of %s", percent(r.Share), r.Way),
			})
		}
		text += "\n" + markdown(rules)
	}
	return text
}

// footnote says where and how the figures were taken, and at what cost.
func (p *Profile) footnote() string {
	c := p.Cost
	lines := []string{
		fmt.Sprintf("%s, Linux %s; %.0f s.", p.Machine, p.Kernel, p.Seconds),
		fmt.Sprintf("Each way is the mean of the middle half of its packets. %.0f ns a hook and %.0f ns a tracepoint are the waypoints' own and left out.",
			c.HookNS, c.TracepointNS),
		fmt.Sprintf("Measuring held up a followed packet by %s us, any other by %.0f ns a waypoint: %s of one CPU in all; the waypoints were there for %s of the time.",
			micros(c.FollowedNS), c.PassNS, percent(c.CPUShare), percent(c.AttachedShare)),
	}
	if unfinished := c.Begun - min(c.Ended, c.Begun); unfinished > 0 {
		lines = append(lines, fmt.Sprintf("%d more packets did not come to an end here: dropped, to somewhere else, or on another CPU.", unfinished))
	}
	if c.Lost > 0 {
		lines = append(lines, fmt.Sprintf("%d packets were lost for want of memory.", c.Lost))
	}
	if p.Interrupted {
		lines = append(lines, "Interrupted: not all of it was measured.")
	}
	for _, e := range p.Errors {
		lines = append(lines, "Missing: "+e)
	}
	return strings.Join(lines, "\n") + "\n"
}

func micros(ns float64) string { return fmt.Sprintf("%.2f", ns/1000) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// markdown draws rows, the first of them the head, in columns.
func markdown(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", width)
		if i > 0 {
			rule[i] = rule[i][1:] + ":" // numbers stand at the right
		}
	}
	var text strings.Builder
	for _, row := range slices.Insert(slices.Clone(rows), 1, rule) {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if i == 0 {
				cell += pad
			} else {
				cell = pad + cell
			}
			fmt.Fprintf(&text, "| %s ", cell)
		}
		text.WriteString("|\n")
	}
	return text.String()
}
