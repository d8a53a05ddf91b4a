package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/httpconn"
)

// Control is what all services implement.
type Control interface {
	// Metrics writes the service's counters in Prometheus' text format.
	Metrics(w io.Writer) error

	// Stop makes the service end, and returns at once.
	Stop() error
}

// Paths of every service.
const (
	// StatusPath serves a document that contains at least Process.
	StatusPath = "/v1/status"
	stopPath   = "/v1/stop"
)

// Limits of one request. Clients are local, and every request is small.
const (
	maxBody        = 4 << 10 // bytes
	maxHeader      = 8 << 10 // bytes
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	shutdownPeriod = 2 * time.Second // for pending requests when the server ends
)

// Serve serves clients on l, a unix socket, until ctx ends, then closes l and lets
// pending requests finish. Every client that can connect may read; a change by a client
// other than root is refused with 403. Errors of single connections go to log.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	return serve(ctx, &clients{Listener: l}, &httpconn.Server{Handler: guard(h), ConnContext: withClient}, log)
}

// serve runs a server on l until ctx ends.
func serve(ctx context.Context, l net.Listener, s *httpconn.Server, log *slog.Logger) error {
	s.HeaderTimeout, s.ReadTimeout, s.WriteTimeout = cmp.Or(s.HeaderTimeout, readTimeout), readTimeout, writeTimeout
	s.MaxHeader, s.Grace, s.Log = maxHeader, shutdownPeriod, log
	if err := s.Serve(ctx, l); err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// serviceHeader names the service that answers, as in Identity.
const serviceHeader = "Scon-Service"

// Named adds a service's name to all answers of h, so that clients notice the socket of
// another service.
func Named(service string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(serviceHeader, service)
		h.ServeHTTP(w, r)
	})
}

// Mux holds a service's routes. A refusal is {"error": "..."} with status 400 (invalid
// request), 404 (unknown route or container), 405 or 500.
type Mux struct{ http.ServeMux }

// AddDebug, if set, adds routes for debugging to those of every service. The program
// sets it before it starts a service.
var AddDebug func(m *Mux)

// NewMux returns the routes of every service:
//
//	GET  /metrics    text for Prometheus
//	POST /v1/stop    {}
//
// and those of AddDebug.
func NewMux(c Control) *Mux {
	m := new(Mux)
	m.Handle(MetricsPath, scrape(c.Metrics))
	Post(m, stopPath, func(*http.Request, struct{}) (any, error) { return struct{}{}, c.Stop() })
	if AddDebug != nil {
		AddDebug(m)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		Reply(w, http.StatusNotFound, refusal{fmt.Sprintf("no route %q", r.URL.Path)})
	})
	return m
}

// Get adds a route that reads, with one parameter ("" is none).
func (m *Mux) Get(path, param string, answer func(r *http.Request, value string) (any, error)) {
	m.Handle(path, method{http.MethodGet, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		values, err := query(r, param)
		if err != nil {
			return nil, err
		}
		return answer(r, values.Get(param))
	}})
}

// Post adds a route that changes state and takes a JSON document. An empty body is the
// zero document.
func Post[T any](m *Mux, path string, answer func(r *http.Request, document T) (any, error)) {
	m.Handle(path, method{http.MethodPost, func(w http.ResponseWriter, r *http.Request) (any, error) {
		if _, err := query(r); err != nil {
			return nil, err
		}
		document, err := decode[T](w, r)
		if err != nil {
			return nil, err
		}
		return answer(r, document)
	}})
}

// method is a route with one method.
type method struct {
	name   string
	answer func(w http.ResponseWriter, r *http.Request) (any, error)
}

func (m method) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if RefuseMethod(w, r, m.name) {
		return
	}
	answer, err := m.answer(w, r)
	if err != nil {
		Refuse(w, err)
		return
	}
	Reply(w, http.StatusOK, answer)
}

// Refuse answers a request with an error.
func Refuse(w http.ResponseWriter, err error) { Reply(w, status(err), refusal{err.Error()}) }

// RefuseMethod refuses a request whose method is not the route's. It returns false for a
// request with that method.
func RefuseMethod(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method {
		return false
	}
	w.Header().Set("Allow", method)
	Reply(w, http.StatusMethodNotAllowed, refusal{fmt.Sprintf("%s takes %s only", r.URL.Path, method)})
	return true
}

// status returns the HTTP status of an error.
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

// query returns the values of a route's parameters.
func query(r *http.Request, params ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &Error{http.StatusBadRequest, fmt.Sprintf("read query: %v", err)}
	}
	for name, v := range values {
		if !slices.Contains(params, name) || len(v) > 1 {
			return nil, &Error{http.StatusBadRequest, fmt.Sprintf("%s: unknown or repeated parameter %q", r.URL.Path, name)}
		}
	}
	return values, nil
}

// decode decodes the one JSON document of a request's body.
func decode[T any](w http.ResponseWriter, r *http.Request) (document T, err error) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return document, &Error{http.StatusBadRequest, fmt.Sprintf("read body: %v", err)}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return document, &Error{http.StatusBadRequest, "read body: more than one JSON document"}
	}
	return document, nil
}

// Reply writes one JSON document. A client that disconnected is no error.
func Reply(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if flows, ok := document.(flowList); ok {
		_ = flows.write(w)
		return
	}
	_ = json.NewEncoder(w).Encode(document)
}

// flowList is encoded flow by flow: a million flows as one text would take hundreds of
// megabytes.
type flowList []Flow

func (flows flowList) write(w io.Writer) error {
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
	if len(flows) > 0 {
		before = ""
	}
	_, err := io.WriteString(w, before+"]\n")
	return err
}
