package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteTable writes the result as Markdown: the medians with their spread, the
// ratios with their intervals, and a footnote.
func (r *Result) WriteTable(w io.Writer) error {
	if r.table != nil {
		return r.table(r, w)
	}
	var modes []string
	for _, mode := range r.modes {
		if len(r.Modes[mode.Name]) > 0 {
			modes = append(modes, mode.Name)
		}
	}
	var pairs []string
	for _, pair := range r.pairs {
		if name := pair[0] + "/" + pair[1]; len(r.Ratios[name]) > 0 {
			pairs = append(pairs, name)
		}
	}
	rows := [][]string{slices.Concat([]string{"metric", "unit"}, modes, pairs)}
	if r.showsGap() {
		rows[0] = append(rows[0], "gap closed")
	}
	for _, metric := range r.metrics {
		if !r.has(metric) {
			continue
		}
		row := []string{metric.Name, metric.Unit}
		for _, mode := range modes {
			row = append(row, r.medianCell(mode, metric.Name))
		}
		for _, pair := range pairs {
			row = append(row, r.ratioCell(r.Ratios[pair], metric.Name))
		}
		if r.showsGap() {
			row = append(row, r.gapCell(metric.Name))
		}
		rows = append(rows, row)
	}
	if err := WriteMarkdown(w, rows); err != nil {
		return err
	}
	return r.WriteFootnote(w)
}

// WriteFootnote writes the machine, the method and the missing samples.
func (r *Result) WriteFootnote(w io.Writer) error {
	_, err := fmt.Fprintf(w, "\n%s\n", r.footnote())
	return err
}

// showsGap reports whether the table has a column of GapClosed.
func (r *Result) showsGap() bool { return len(r.GapClosed) > 0 && !r.counted }

// has reports whether any mode has samples of a metric.
func (r *Result) has(metric Metric) bool {
	for _, mode := range r.modes {
		if len(r.Modes[mode.Name][metric.Name]) > 0 {
			return true
		}
	}
	return false
}

// medianCell formats a median and the relative spread of the samples.
func (r *Result) medianCell(mode, metric string) string {
	samples := r.Modes[mode][metric]
	if len(samples) == 0 {
		return "-"
	}
	if r.counted {
		return fmt.Sprintf("%.0f", median(samples))
	}
	if r.few() {
		return number(median(samples))
	}
	return fmt.Sprintf("%s ±%.0f %%", number(median(samples)), 100*r.Spread[mode][metric])
}

func (r *Result) ratioCell(intervals map[string]Interval, metric string) string {
	i, ok := intervals[metric]
	if !ok {
		return "-"
	}
	if r.counted {
		return fmt.Sprintf("%.3f", i.Median)
	}
	if r.few() {
		return fmt.Sprintf("%.2f", i.Median)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High)
}

// fewRounds are too few for a spread or an interval of their samples.
const fewRounds = 3

func (r *Result) few() bool { return r.Rounds < fewRounds }

// unclear stands for a share of the gap whose bounds are farther apart than the gap is wide.
const unclear = "unclear"

func (r *Result) gapCell(metric string) string {
	if i, ok := r.GapClosed[metric]; ok && (r.few() || i.High-i.Low > 1) {
		return unclear
	}
	return r.ratioCell(r.GapClosed, metric)
}

// number formats three significant digits, and large numbers in full.
func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// footnote describes the machine and the method.
func (r *Result) footnote() string {
	if r.counted {
		return r.countedFootnote()
	}
	lines := []string{
		fmt.Sprintf("%s, Linux %s; %d rounds in %.0f s, modes interleaved.", r.Machine, r.Kernel, r.Rounds, r.Seconds),
		r.method(),
		fmt.Sprintf("CPUs before: %s; after: %s.", r.Distance.Before, r.Distance.After),
	}
	if len(r.Settings) > 0 {
		lines = append(lines, r.settings())
	}
	return strings.Join(append(lines, r.problems()...), "\n")
}

// method says what the cells of the table are, and what is left out of them.
func (r *Result) method() string {
	method := "Medians ± distance of the quartiles; ratios of medians with 95 % bootstrap intervals."
	if r.few() {
		method = fmt.Sprintf("Medians, and ratios of medians. Spreads and intervals are left out: they need %d rounds at least.", fewRounds)
	}
	for _, metric := range r.metrics {
		if r.showsGap() && r.gapCell(metric.Name) == unclear {
			return method + "\nGap closed: \"" + unclear + "\" where the samples do not tell; more rounds may."
		}
	}
	return method
}

// settings returns the experiment's settings as "connections 200, rules 20000".
func (r *Result) settings() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		list = append(list, fmt.Sprintf("%s %d", name, r.Settings[name]))
	}
	return "Settings: " + strings.Join(list, ", ") + "."
}

// problems lists what is missing or was measured again.
func (r *Result) problems() (lines []string) {
	if r.Interrupted {
		lines = append(lines, "Interrupted: the rounds are not complete.")
	}
	for _, e := range r.Retries {
		lines = append(lines, "Taken again: "+e)
	}
	for _, e := range r.Errors {
		lines = append(lines, "Missing: "+e)
	}
	return lines
}

// WriteMarkdown writes rows as an aligned table; the first row is the head.
func WriteMarkdown(w io.Writer, rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", width)
	}
	for _, row := range slices.Insert(slices.Clone(rows), 1, rule) {
		for i, cell := range row {
			row[i] = cell + strings.Repeat(" ", widths[i]-len([]rune(cell)))
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
			return err
		}
	}
	return nil
}
