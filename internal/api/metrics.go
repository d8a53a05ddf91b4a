package api

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/metrics"
)

// MetricsPath is the path of the metrics.
const MetricsPath = "/metrics"

// ServeMetrics serves GET /metrics only, on l until ctx ends, then closes l. Every client
// that can connect and names this machine may read. Errors of single connections go to log.
func ServeMetrics(ctx context.Context, l net.Listener, write func(io.Writer) error, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle(MetricsPath, scrape(write))
	return servePublic(ctx, l, mux, log)
}

// scrape serves the output of write, in Prometheus' text format or, if the client asks for
// it, in OpenMetrics.
type scrape func(w io.Writer) error

func (write scrape) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if RefuseMethod(w, r, http.MethodGet) {
		return
	}
	var text bytes.Buffer
	if err := write(&text); err != nil {
		Reply(w, http.StatusInternalServerError, refusal{err.Error()})
		return
	}
	kind, body := metrics.TextType, text.String()
	if wantsOpenMetrics(r.Header.Values("Accept")) {
		kind, body = metrics.OpenMetricsType, metrics.OpenMetrics(body)
	}
	w.Header().Set("Content-Type", kind)
	_, _ = io.WriteString(w, body) // a client that went away is no error
}

// wantsOpenMetrics reports whether a client accepts version 1.0.0 of OpenMetrics.
func wantsOpenMetrics(accept []string) bool {
	for _, one := range strings.Split(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(one)
		version := params["version"]
		if err != nil || kind != "application/openmetrics-text" || version != "" && version != "1.0.0" {
			continue
		}
		if quality, err := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64); err == nil && quality > 0 {
			return true
		}
	}
	return false
}
