// Package metrics writes counters for Prometheus, in its text format.
//
// The format is written by hand: Prometheus' own library takes 2 MB of memory.
// The tests read it back with that library.
package metrics

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Family is all metrics of one name.
type Family struct {
	name, kind, help string
	labels           []string
}

// families are all that there are, in the order in which they are written.
var families []*Family

// Counter makes a family of counters.
func Counter(name, help string, labels ...string) *Family {
	return newFamily(Family{name, "counter", help, labels})
}

// Gauge makes a family of gauges.
func Gauge(name, help string, labels ...string) *Family {
	return newFamily(Family{name, "gauge", help, labels})
}

func newFamily(f Family) *Family {
	families = append(families, &f)
	return &f
}

// Page is the samples of each family, a line for each.
type Page map[*Family][]string

var (
	helpText   = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// Put adds a sample with a value for each of the family's labels.
func (p Page) Put(f *Family, value float64, labels ...string) {
	var pairs []string
	for i, name := range f.labels {
		pairs = append(pairs, fmt.Sprintf(`%s="%s"`, name, labelValue.Replace(strings.ToValidUTF8(labels[i], "?"))))
	}
	line := f.name
	if len(pairs) > 0 {
		line += "{" + strings.Join(pairs, ",") + "}"
	}
	p[f] = append(p[f], line+" "+strconv.FormatFloat(value, 'f', -1, 64))
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
