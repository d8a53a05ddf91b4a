package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
)

// Paths of the probes.
const (
	HealthyPath = "/healthz"
	ReadyPath   = "/readyz"
)

// Probes are what an orchestrator asks a service for. Each returns the reason why not.
type Probes struct {
	Healthy func() error // it works; otherwise it should be started again
	Ready   func() error // it does what it is there for
}

// ServeProbes serves GET /healthz and GET /readyz only, on l until ctx ends, then closes
// l. Every client that can connect and names this machine may ask. Errors of single connections go to log.
func ServeProbes(ctx context.Context, l net.Listener, p Probes, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle(HealthyPath, probe(p.Healthy))
	mux.Handle(ReadyPath, probe(p.Ready))
	return servePublic(ctx, l, mux, log)
}

// probe answers 200 and "ok", or 503 and the reason.
type probe func() error

func (ask probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if RefuseMethod(w, r, http.MethodGet) {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := "ok"
	if err := ask(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error()
	}
	_, _ = io.WriteString(w, text+"\n") // a client that went away is no error
}
