package api

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"

	"golang.org/x/net/netutil"
)

// MetricsPath is the path of the metrics.
const MetricsPath = "/metrics"

// maxScrapers limits the open connections to the metrics' own address. Further ones wait.
const maxScrapers = 8

// ServeMetrics serves GET /metrics only, on l until ctx ends, then closes l. Every client
// that can connect may read. Errors of single connections go to log.
func ServeMetrics(ctx context.Context, l net.Listener, write func(io.Writer) error, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle(MetricsPath, scrape(write))
	return serve(ctx, netutil.LimitListener(l, maxScrapers), &http.Server{Handler: mux}, log)
}

// scrape serves the output of write, in Prometheus' text format.
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
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = text.WriteTo(w) // a client that went away is no error
}
