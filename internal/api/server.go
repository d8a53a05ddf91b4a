package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"
)

// Backend is what the daemon does for its clients. A container is given by
// name or ID; "" stands for all of them, and one that does not exist is
// refused with *UnknownContainerError.
type Backend interface {
	Status() (Status, error)
	Flows(container string) ([]Flow, error)

	// Explain takes what ParseSubject reads.
	Explain(subject string) (Explanation, error)

	// Metrics writes what it counts in Prometheus' text format.
	Metrics(w io.Writer) error

	// Flush takes Conentries away and says how many.
	Flush(container string) (int, error)

	Pause(container string) error
	Resume(container string) error

	// Stop begins the end of the daemon, and returns before it.
	Stop() error
}

// Bounds of one request. Clients are local, and every request is small.
const (
	maxBody        = 4 << 10 // bytes
	maxHeader      = 8 << 10 // bytes
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 30 * time.Second
	shutdownPeriod = 2 * time.Second // for requests under way when the server ends
)

// Serve answers clients on l, a unix socket, until ctx ends, then closes l and
// lets requests under way finish. Whoever can connect may read; changing
// anything is for root, others are refused with 403.
func Serve(ctx context.Context, l net.Listener, b Backend) error {
	return serve(ctx, &clients{Listener: l}, &http.Server{Handler: guard(Handler(b)), ConnContext: withClient})
}

// serve runs a server on l until ctx ends.
func serve(ctx context.Context, l net.Listener, srv *http.Server) error {
	srv.ReadHeaderTimeout, srv.ReadTimeout = readTimeout, readTimeout
	srv.WriteTimeout, srv.IdleTimeout = writeTimeout, idleTimeout
	srv.MaxHeaderBytes = maxHeader
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPeriod)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	<-served
	return nil
}

// Handler is the server without its socket, for clients that may do everything.
//
//	GET  /v1/status                      Status
//	GET  /v1/flows?container=C           [Flow]
//	GET  /v1/explain?subject=S           Explanation
//	GET  /metrics                        text for Prometheus
//	POST /v1/flush   {"container": "C"}  {"flushed": N}
//	POST /v1/pause   {"container": "C"}  {}
//	POST /v1/resume  {"container": "C"}  {}
//	POST /v1/stop                        {}
//
// and those of handleStartup and handlePipe, for a Backend that is a Starter or
// a Piper.
//
// Every refusal is {"error": "..."} under a status of 400 (the request makes
// no sense), 404 (no such route or container), 405 or 500.
func Handler(b Backend) http.Handler {
	mux := http.NewServeMux()
	reads := func(path, param string, answer func(value string) (any, error)) {
		mux.Handle(path, method{http.MethodGet, func(w http.ResponseWriter, r *http.Request) (any, error) {
			value, err := query(r, param)
			if err != nil {
				return nil, err
			}
			return answer(value)
		}})
	}
	changes := func(path string, answer func(container string) (any, error)) {
		mux.Handle(path, method{http.MethodPost, func(w http.ResponseWriter, r *http.Request) (any, error) {
			if _, err := query(r, ""); err != nil {
				return nil, err
			}
			container, err := body(w, r)
			if err != nil {
				return nil, err
			}
			return answer(container)
		}})
	}

	reads("/v1/status", "", func(string) (any, error) {
		s, err := b.Status()
		return s.whole(), err
	})
	reads("/v1/flows", "container", func(c string) (any, error) {
		flows, err := b.Flows(c)
		return list(flows), err
	})
	reads("/v1/explain", "subject", func(s string) (any, error) {
		if _, err := ParseSubject(s); err != nil {
			return nil, err
		}
		e, err := b.Explain(s)
		return e.whole(), err
	})
	mux.Handle(MetricsPath, scrape(b.Metrics))
	changes("/v1/flush", func(c string) (any, error) {
		n, err := b.Flush(c)
		return flushed{n}, err
	})
	changes("/v1/pause", func(c string) (any, error) { return struct{}{}, b.Pause(c) })
	changes("/v1/resume", func(c string) (any, error) { return struct{}{}, b.Resume(c) })
	changes("/v1/stop", func(c string) (any, error) {
		if c != "" {
			return nil, &Error{http.StatusBadRequest, "stop takes no container"}
		}
		return struct{}{}, b.Stop()
	})
	if s, ok := b.(Starter); ok {
		handleStartup(mux, s)
	}
	if p, ok := b.(Piper); ok {
		handlePipe(mux, p)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusNotFound, refusal{fmt.Sprintf("no route %q", r.URL.Path)})
	})
	return mux
}

// flushed is the answer to a flush.
type flushed struct {
	Flushed int `json:"flushed"`
}

// change is the body of a request that changes something.
type change struct {
	Container string `json:"container,omitempty"`
}

// method is a route that knows one method.
type method struct {
	name   string
	answer func(w http.ResponseWriter, r *http.Request) (any, error)
}

func (m method) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != m.name {
		refuseMethod(w, r, m.name)
		return
	}
	answer, err := m.answer(w, r)
	if err != nil {
		reply(w, status(err), refusal{err.Error()})
		return
	}
	reply(w, http.StatusOK, answer)
}

// refuseMethod answers a request with another method than a route's.
func refuseMethod(w http.ResponseWriter, r *http.Request, method string) {
	w.Header().Set("Allow", method)
	reply(w, http.StatusMethodNotAllowed, refusal{fmt.Sprintf("%s takes %s only", r.URL.Path, method)})
}

// status is HTTP's number for err.
func status(err error) int {
	var (
		refused *Error
		unknown *UnknownContainerError
		subject *SubjectError
	)
	switch {
	case errors.As(err, &refused):
		return refused.Status
	case errors.As(err, &unknown):
		return http.StatusNotFound
	case errors.As(err, &subject):
		return http.StatusBadRequest
	default:
		return http.StatusInternalServerError
	}
}

// query is the value of the one parameter that a route knows.
func query(r *http.Request, param string) (string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", &Error{http.StatusBadRequest, fmt.Sprintf("read query: %v", err)}
	}
	for name, v := range values {
		if name != param || len(v) > 1 {
			return "", &Error{http.StatusBadRequest, fmt.Sprintf("%s takes no parameter %q, or not twice", r.URL.Path, name)}
		}
	}
	return values.Get(param), nil
}

// body is the container that a request to change something names.
func body(w http.ResponseWriter, r *http.Request) (container string, err error) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	var c change
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return "", &Error{http.StatusBadRequest, fmt.Sprintf("read body: %v", err)}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", &Error{http.StatusBadRequest, "read body: more than one JSON document"}
	}
	return c.Container, nil
}

// reply writes one JSON document. A client that went away is no error.
func reply(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if flows, ok := document.([]Flow); ok {
		_ = writeFlows(w, flows)
		return
	}
	_ = json.NewEncoder(w).Encode(document)
}

// manyFlows take a megabyte or more.
const manyFlows = 1000

// writeFlows writes one flow after the other. There may be thousands, whose
// text as a whole would take megabytes of the daemon's memory; what they take
// themselves is given back at once.
func writeFlows(w io.Writer, flows []Flow) error {
	before, encoder := "[", json.NewEncoder(w)
	for _, f := range flows {
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		if err := encoder.Encode(f); err != nil {
			return err
		}
		before = ","
	}
	many := len(flows) >= manyFlows
	if len(flows) > 0 {
		before = ""
	}
	_, err := io.WriteString(w, before+"]\n")
	if many {
		debug.FreeOSMemory()
	}
	return err
}
