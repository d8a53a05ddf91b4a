package latency

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/scon-project/scon/lab/bench"
)

// WriteTable writes the result as Markdown.
func (r *Result) WriteTable(w io.Writer) error {
	var text strings.Builder
	rows := [][]string{{"mode", "nodes", "packets/s", "p50, us", "p99, us", "p99.9, us", "max, us", "arrived", "lost", "skipped"}}
	for _, mode := range r.Order {
		if len(r.Modes[mode]["p50_us"]) == 0 {
			continue
		}
		d := r.Details[mode]
		row := []string{mode, fmt.Sprint(d.Nodes), fmt.Sprintf("%.0f", median(r.Modes[mode]["rate_pps"]))}
		for _, metric := range []string{"p50_us", "p99_us", "p999_us"} {
			row = append(row, fmt.Sprintf("%s ±%.0f %%", number(median(r.Modes[mode][metric])), 100*r.Spread[mode][metric]))
		}
		row = append(row, number(slices.Max(r.Modes[mode]["max_us"])))
		var sum Round
		for _, run := range d.Rounds {
			sum.Arrived += run.Arrived
			sum.Lost += run.Lost
			sum.Skipped += run.Skipped + run.Untapped
		}
		rows = append(rows, append(row, fmt.Sprint(sum.Arrived), fmt.Sprint(sum.Lost), fmt.Sprint(sum.Skipped)))
	}
	text.WriteString(markdown(rows))
	text.WriteString(r.causeTable())
	fmt.Fprintf(&text, "\n%s\n", strings.Join(r.footnotes(), "\n"))
	_, err := io.WriteString(w, text.String())
	return err
}

// causeTable shows the causes of delay in each mode.
func (r *Result) causeTable() string {
	rows := [][]string{{"cause, of the packet or of one that it waited for; worst round: packets (of the slowest 0.1 %), their median us", "none"}}
	for c := range causes {
		if !slices.Contains(r.NotAvailable, c.String()) {
			rows[0] = append(rows[0], c.String())
		}
	}
	for _, mode := range r.Order {
		d := r.Details[mode]
		if d.Causes == nil {
			continue
		}
		row := []string{mode}
		for _, name := range rows[0][1:] {
			c, found := d.Causes[name]
			cell := "-"
			if found {
				cell = fmt.Sprintf("%d (%d), %s", c.Packets, c.Slowest, number(c.P50US))
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + markdown(rows)
}

// footnotes describe the machine, the method and the taps' cost.
func (r *Result) footnotes() []string {
	lines := []string{
		fmt.Sprintf("%s, Linux %s; %d rounds of %.3g s in %.0f s, modes interleaved; %s; %d byte frames; pin: %s.",
			r.Machine, r.Kernel, r.Rounds, r.DurationS, r.Seconds, lineText[r.Line], r.FrameBytes, r.Pin),
		"Medians of the rounds ± distance of their quartiles, the highest max, sums of the packets.",
		"Skipped packets were never sent: the generator was too late.",
		fmt.Sprintf("CPUs before: %s; after: %s. %s.", r.Distance.Before, r.Distance.After, capitalize(strings.Join(r.Notes, "; "))),
		fmt.Sprintf("The taps cost a packet %.0f + %.0f ns.", r.TapCost.InNS, r.TapCost.OutNS),
	}
	for _, s := range []struct{ suffix, what string }{{"", "One more node adds"}, {expressSuffix, "With SCON, it adds"}} {
		if us, ok := r.PerNode(s.suffix); ok {
			lines = append(lines, fmt.Sprintf("%s %.2f us to the median.", s.what, us))
		}
	}
	for _, mode := range r.Order {
		if share := r.Details[mode].ExpressShare; share > 0 {
			lines = append(lines, fmt.Sprintf("%s: %.1f %% of the packets went express.", mode, 100*share))
		}
	}
	for _, mode := range r.Order {
		if c := r.Details[mode].Curve; c != nil {
			lines = append(lines, fmt.Sprintf("%s: no loss up to %.0f packets/s.", mode, c.LossFree))
		}
	}
	for _, mode := range r.Order {
		if percent, ok := r.Details[mode].tlbPercent(); ok {
			lines = append(lines, fmt.Sprintf("%s: %.2g %% of the dTLB's lookups missed.", mode, percent))
		}
	}
	if len(r.NotAvailable) > 0 {
		lines = append(lines, "Not available here: "+strings.Join(r.NotAvailable, ", ")+".")
	}
	if r.Interrupted {
		lines = append(lines, "Interrupted: the rounds are not complete.")
	}
	return lines
}

var lineText = map[string]string{
	Routed: "lines of routing nodes", Gateways: "lines of gateways with Docker's rules", OfFile: "flows of a topology file",
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// number formats three significant digits, and large numbers in full.
func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// markdown formats rows as an aligned table; the first row is the head.
func markdown(rows [][]string) string {
	var text strings.Builder
	if err := bench.WriteMarkdown(&text, rows); err != nil {
		panic(err) // a Builder returns no error
	}
	return text.String()
}
