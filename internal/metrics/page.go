// Package metrics writes metrics in Prometheus' text format.
//
// It formats them itself: Prometheus' own library takes 2 MB of memory. The tests parse
// the output with that library.
package metrics

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/plain"
)

// Family is the metrics of one name.
type Family struct {
	name, kind, help string
	labels           []string
}

// families lists all families in output order.
var families []*Family

// Counter defines a family of counters.
func Counter(name, help string, labels ...string) *Family {
	return newFamily(Family{name, "counter", help, labels})
}

// Gauge defines a family of gauges.
func Gauge(name, help string, labels ...string) *Family {
	return newFamily(Family{name, "gauge", help, labels})
}

func newFamily(f Family) *Family {
	families = append(families, &f)
	return &f
}

// Page holds the samples of each family: one line each, of a histogram its lines.
type Page map[*Family][]string

var (
	helpText   = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
)

// Put adds a sample, with a value for each of the family's labels.
func (p Page) Put(f *Family, value float64, labels ...string) {
	p[f] = append(p[f], f.sample("", value, labels))
}

// sample returns the line of a sample. suffix is that of the family's name; more are a
// label's name and value behind the family's own.
func (f *Family) sample(suffix string, value float64, labels []string, more ...string) string {
	var pairs []string
	pair := func(name, value string) {
		pairs = append(pairs, fmt.Sprintf(`%s="%s"`, name, labelValue.Replace(plain.Text(value))))
	}
	for i, name := range f.labels {
		pair(name, labels[i])
	}
	if len(more) > 0 {
		pair(more[0], more[1])
	}
	line := f.name + suffix
	if len(pairs) > 0 {
		line += "{" + strings.Join(pairs, ",") + "}"
	}
	return line + " " + strconv.FormatFloat(value, 'f', -1, 64)
}

// Each adds a sample for each value of a family's last label.
func (p Page) Each(f *Family, values map[string]uint64, labels ...string) {
	for label, n := range values {
		p.Put(f, float64(n), append(labels[:len(labels):len(labels)], label)...)
	}
}

// Write writes the families that have samples.
func (p Page) Write(w io.Writer) error {
	var text strings.Builder
	for _, f := range families {
		samples := p[f]
		if len(samples) == 0 {
			continue
		}
		slices.Sort(samples)
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n%s\n",
			f.name, helpText.Replace(f.help), f.name, f.kind, strings.Join(samples, "\n"))
	}
	_, err := io.WriteString(w, text.String())
	return err
}
