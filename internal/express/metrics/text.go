package metrics

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// family is all metrics of one name.
type family struct {
	name, kind, help string
	labels           []string
}

// families are all that there are, in the order in which they are written.
var families []*family

func counter(name, help string, labels ...string) *family {
	return newFamily(family{name, "counter", help, labels})
}

func gauge(name, help string, labels ...string) *family {
	return newFamily(family{name, "gauge", help, labels})
}

func newFamily(f family) *family {
	families = append(families, &f)
	return &f
}

// page is the samples of each family, a line for each.
type page map[*family][]string

var (
	helpText   = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// put adds a sample with a value for each of the family's labels.
func (p page) put(f *family, value float64, labels ...string) {
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

// each adds a sample for each value of a family's last label.
func (p page) each(f *family, values map[string]uint64, labels ...string) {
	for label, n := range values {
		p.put(f, float64(n), append(labels[:len(labels):len(labels)], label)...)
	}
}

// write writes the families that have samples.
func (p page) write(w io.Writer) error {
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
