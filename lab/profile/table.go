package profile

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteTable writes the profile as Markdown: a column per path, a row per layer,
// the cost of the host's rules, and the cost of the measurement.
func (p *Profile) WriteTable(w io.Writer) error {
	var text string
	if len(p.Paths) > 0 {
		text = p.tables() + "\n"
	}
	_, err := io.WriteString(w, text+p.footnote())
	return err
}

func (p *Profile) tables() string {
	head := []string{"layer, us"}
	for _, path := range p.Paths {
		head = append(head, path.Name)
	}
	rows := [][]string{head}
	row := func(name string, cell func(Path) string) {
		cells := []string{name}
		for _, path := range p.Paths {
			cells = append(cells, cell(path))
		}
		rows = append(rows, cells)
	}
	for _, name := range layerNames(p.Paths) {
		row(name, func(path Path) string {
			ns, ok := path.layer(name)
			if !ok {
				return "-"
			}
			return micros(ns)
		})
	}
	row("**all layers**", func(path Path) string { return "**" + micros(path.TotalNS) + "**" })
	if slices.ContainsFunc(p.Paths, func(path Path) bool { return path.EndToEndNS > 0 }) {
		row("by two waypoints at the ends", func(path Path) string { return micros(path.EndToEndNS) })
		row("the whole call, without waypoints", func(path Path) string { return micros(path.CallNS) })
	}
	row("quartiles' distance", func(path Path) string { return percent(path.Spread) })
	row("packets followed", func(path Path) string { return fmt.Sprint(path.Packets) })
	row("of them by this path", func(path Path) string { return percent(path.Share) })
	text := markdown(rows)
	if len(p.Rules) > 0 {
		rules := [][]string{{"rules of the host, the dearest first", "us", "of the path"}}
		for _, r := range p.Rules {
			rules = append(rules, []string{
				r.Hook + ": " + strings.Join(r.Chains, ", "), micros(r.NS), fmt.Sprintf("%s of %s", percent(r.Share), r.Path),
			})
		}
		text += "\n" + markdown(rules)
	}
	return text
}

// footnote describes the machine, the method and the cost.
func (p *Profile) footnote() string {
	c := p.Cost
	lines := []string{
		fmt.Sprintf("%s, Linux %s; %.0f s.", p.Machine, p.Kernel, p.Seconds),
		fmt.Sprintf("Each path is the mean of the middle half of its packets. %.0f ns a hook and %.0f ns a tracepoint are the waypoints' own and left out.",
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
	for _, few := range p.Few {
		lines = append(lines, "Left out: "+few+".")
	}
	for _, e := range p.Errors {
		lines = append(lines, "Missing: "+e)
	}
	return strings.Join(lines, "\n") + "\n"
}

func micros(ns float64) string { return fmt.Sprintf("%.2f", ns/1000) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// markdown formats rows as an aligned table; the first row is the head.
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
			rule[i] = rule[i][1:] + ":" // numbers are right-aligned
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
