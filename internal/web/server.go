// Package web serves the live page of "scon web": what the daemon does now, in a browser.
// It reads only.
package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
)

//go:embed page
var files embed.FS

// Daemon is what the page shows; *api.Client implements it.
type Daemon interface {
	live.Source
	Explain(subject string) (api.Explanation, error)
}

// Bounds of what pages may take.
const (
	mostPages  = 16               // that listen at a time
	mostRows   = 200              // of a table in one answer
	patience   = 10 * time.Second // for a page to read
	mostHeader = 16 << 10         // bytes
)

// Server is the page's server.
type Server struct {
	listener net.Listener
	hosts    []string // names of this server in requests
	token    string
	daemon   Daemon
	hub      *hub
	http     http.Server
}

// errNotLoopback is wrapped by New.
var errNotLoopback = errors.New("not a loopback address; 127.0.0.1 or [::1], and a tunnel such as 'ssh -L', show the page elsewhere")

// New listens at an address, HOST:PORT with a loopback address; port 0 is a free one.
func New(address string, d Daemon, interval time.Duration) (*Server, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen at %q: want HOST:PORT: %w", address, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("listen at %q: %w", address, errNotLoopback)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen at %q: %w", address, err)
	}
	s := &Server{listener: l, token: newToken(), daemon: d, hub: newHub(d, interval)}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	s.hosts = []string{l.Addr().String(), net.JoinHostPort("localhost", port), net.JoinHostPort(host, port)}
	s.http = http.Server{
		Handler: s.guard(s.routes()), ReadHeaderTimeout: patience, IdleTimeout: time.Minute, MaxHeaderBytes: mostHeader,
	}
	return s, nil
}

// URL is the page's address with the token.
func (s *Server) URL() string { return "http://" + s.hosts[0] + "/?token=" + s.token }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	page, _ := fs.Sub(files, "page") // the name is valid
	m := http.NewServeMux()
	m.Handle("/", http.FileServerFS(page))
	m.HandleFunc("/events", s.events)
	m.HandleFunc("/explain", s.explain)
	m.HandleFunc("/filter", checkFilter)
	m.HandleFunc("/reasons", func(w http.ResponseWriter, _ *http.Request) { answer(w, live.Reasons) })
	return m
}

// explain answers with an api.Explanation.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	subject := r.URL.Query().Get("subject")
	if _, err := api.ParseSubject(subject); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e, err := s.daemon.Explain(subject)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	answer(w, e)
}

// checkFilter refuses what is no filter.
func checkFilter(w http.ResponseWriter, r *http.Request) {
	if _, err := live.ParseFilter(r.URL.Query().Get("filter")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func answer(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // to a page that may have gone
}

// Window is the part of a table that a page shows.
type Window struct {
	Filter  string
	Order   string // of live.ConnectionOrders
	Reverse bool
	From    int // first row
}

// windowOf reads a window of a request.
func windowOf(r *http.Request) (w Window, f live.Filter, order live.Order[live.Connection], err error) {
	q := r.URL.Query()
	w = Window{Filter: q.Get("filter"), Order: q.Get("order"), Reverse: q.Get("reverse") == "1"}
	if text := q.Get("from"); text != "" {
		if w.From, err = strconv.Atoi(text); err != nil || w.From < 0 {
			return w, f, order, fmt.Errorf("from is %q: want a number of a row", text)
		}
	}
	if f, err = live.ParseFilter(w.Filter); err != nil {
		return w, f, order, err
	}
	for _, o := range live.ConnectionOrders {
		if o.Name == w.Order || w.Order == "" {
			return w, f, o, nil
		}
	}
	return w, f, order, fmt.Errorf("order is %q: there is no such order", w.Order)
}

// event is what a page gets of a look.
type event struct {
	live.View
	Error string `json:"error,omitempty"` // why the daemon did not answer; the rest is empty then
	// Connections are rows of the window; Matching is how many the filter selects, of Total.
	Matching int `json:"matching"`
	Total    int `json:"total"`
	From     int `json:"from"`
}

// events answers with Server-Sent Events, an event for each look.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	window, filter, order, err := windowOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	looks, ok := s.hub.listen()
	if !ok {
		http.Error(w, fmt.Sprintf("%d pages are open already; close one", mostPages), http.StatusServiceUnavailable)
		return
	}
	defer s.hub.leave(looks)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case l := <-looks:
			text, err := json.Marshal(l.event(window, filter, order))
			if err != nil || control.SetWriteDeadline(time.Now().Add(patience)) != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || control.Flush() != nil {
				return
			}
		}
	}
}

func (l look) event(w Window, f live.Filter, order live.Order[live.Connection]) event {
	if l.err != nil {
		return event{Error: l.err.Error(), View: live.Between(live.Snapshot{}, live.Snapshot{})}
	}
	e := event{View: l.view, Total: len(l.view.Connections)}
	f.Apply(&e.View)
	e.Matching = len(e.Connections)
	live.SortConnections(e.Connections, order, w.Reverse)
	e.From = min(w.From, max(0, e.Matching-1))
	e.Connections = e.Connections[e.From:min(e.From+mostRows, e.Matching)]
	return e
}
