package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/metrics"
)

// Clients that accept OpenMetrics get it, all others the text format.
func TestFormat(t *testing.T) {
	write := scrape(func(w io.Writer) error {
		_, err := io.WriteString(w, "# TYPE a_total counter\na_total 1\n")
		return err
	})
	for _, c := range []struct {
		accept []string
		open   bool
	}{
		{nil, false},
		{[]string{"*/*"}, false},
		{[]string{"text/plain;version=0.0.4"}, false},
		{[]string{"application/openmetrics-text"}, true},
		{[]string{"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}, true},
		{[]string{"text/plain", "application/openmetrics-text; version=1.0.0"}, true},
		{[]string{"application/openmetrics-text;version=0.0.1"}, false},
		{[]string{"application/openmetrics-text;version=2.0.0"}, false},
		{[]string{"application/openmetrics-text;q=0"}, false},
		{[]string{"application/openmetrics-text;q=x"}, false},
		{[]string{";;,application/openmetrics-text"}, true},
	} {
		r := httptest.NewRequest(http.MethodGet, MetricsPath, nil)
		r.Header["Accept"] = c.accept
		w := httptest.NewRecorder()
		write.ServeHTTP(w, r)
		want := metrics.TextType
		if c.open {
			want = metrics.OpenMetricsType
		}
		if got := w.Header().Get("Content-Type"); got != want || strings.HasSuffix(w.Body.String(), "# EOF\n") != c.open {
			t.Errorf("%q gets %s:\n%s", c.accept, got, w.Body)
		}
	}
}
