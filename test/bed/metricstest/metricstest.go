// Package metricstest has what the tests of the services' metrics have in common.
package metricstest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Families are a service's metrics by their names.
type Families = map[string]*dto.MetricFamily

// Parse parses the output of write as Prometheus does. Names, units and help must follow
// Prometheus' conventions.
func Parse(t *testing.T, write func(io.Writer) error) Families {
	t.Helper()
	var text bytes.Buffer
	if err := write(&text); err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text.Bytes())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// Values returns the values of SCON's own series, by their names in Prometheus' notation;
// of histograms the sums and the counts.
func Values(families Families) map[string]float64 {
	values := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			switch h := m.GetHistogram(); {
			case !strings.HasPrefix(name, "scon_"):
			case h != nil:
				values[series(name+"_sum", m)] = h.GetSampleSum()
				values[series(name+"_count", m)] = float64(h.GetSampleCount())
			default:
				values[series(name, m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return values
}

func series(name string, m *dto.Metric) string {
	var labels []string
	for _, l := range m.Label {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	if len(labels) == 0 {
		return name
	}
	return name + "{" + strings.Join(labels, ",") + "}"
}

// Items returns the items of a document's lists, each in one line.
func Items(document string) (all []string) {
	for _, item := range strings.Split("\n"+document, "\n- ")[1:] {
		item, _, _ = strings.Cut(item, "\n\n")
		all = append(all, strings.Join(strings.Fields(item), " "))
	}
	return all
}

// WantDocumented fails unless the document lists every family of a service with its kind,
// labels and help, and no other family of that service. Families without another service's
// prefix belong to express.
func WantDocumented(t *testing.T, document, service string, families Families) {
	t.Helper()
	content, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	serviceOf := func(name string) string {
		for _, other := range []string{"startup", "pipe"} {
			if strings.HasPrefix(name, "scon_"+other+"_") {
				return other
			}
		}
		return "express"
	}
	var got, want []string
	for _, item := range Items(string(content)) {
		if name, is := strings.CutPrefix(item, "`"); is && strings.HasPrefix(name, "scon_") && serviceOf(name) == service {
			got = append(got, item)
		}
	}
	for name, f := range families {
		if !strings.HasPrefix(name, "scon_") {
			continue
		}
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		by := ""
		if labels != nil {
			by = " by " + strings.Join(labels, ", ")
		}
		want = append(want, fmt.Sprintf("`%s` (%s%s): %s", name, strings.ToLower(f.GetType().String()), by, f.GetHelp()))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs (-code +document):\n%s", document, diff)
	}
}
