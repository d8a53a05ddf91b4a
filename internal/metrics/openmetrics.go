package metrics

import "strings"

// Content types of the formats.
const (
	TextType        = "text/plain; version=0.0.4; charset=utf-8"
	OpenMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

// OpenMetrics converts what Page.Write writes from Prometheus' text format to OpenMetrics:
// the name of a family of counters lacks _total, and the text has an end.
func OpenMetrics(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if comment, name, rest, ok := header(line); ok {
			line = comment + strings.TrimSuffix(name, "_total") + " " + rest
		}
		b.WriteString(line)
	}
	b.WriteString("# EOF\n")
	return b.String()
}

// header splits a line that describes a family.
func header(line string) (comment, name, rest string, ok bool) {
	for _, comment := range []string{"# HELP ", "# TYPE "} {
		if after, is := strings.CutPrefix(line, comment); is {
			name, rest, ok = strings.Cut(after, " ")
			return comment, name, rest, ok
		}
	}
	return "", "", "", false
}
