// Package web serves the live page: what the services do now, in a browser. "scon web"
// serves it over the daemon's socket, and a daemon with the setting web at an address of
// its own. It reads only.
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
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/net/netutil"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/live"
)

//go:embed page
var files embed.FS

// Daemon is what the page shows; api.Backend has it.
type Daemon interface {
	live.Source
	Explain(subject string) (api.Explanation, error)
}

// A Document is what the page asks for beside the daemon's state, as JSON. The page shows
// an error in its place.
type Document func(ctx context.Context, q url.Values) (any, error)

// Options say what the page shows, and to whom.
type Options struct {
	Daemon Daemon
	// Documents by their paths, such as "pipe".
	Documents map[string]Document
	// Interval between two looks at the daemon.
	Interval time.Duration
	// Group may connect to a unix socket, beside root.
	Group string
}

// Bounds of what pages may take.
const (
	mostPages   = 16               // that listen at a time
	mostRows    = 200              // of a table in one answer
	mostClients = 64               // connections
	patience    = 10 * time.Second // for a page to read
	mostHeader  = 16 << 10         // bytes
)

// Server is the page's server.
type Server struct {
	listener net.Listener
	token    string // "" at a unix socket
	opts     Options
	hub      *hub
	http     http.Server
}

// Listen listens at an address, HOST:PORT where port 0 is a free one, or at the path of a
// unix socket, which replaces a stale one.
func Listen(address string, o Options) (*Server, error) {
	s := &Server{opts: o, hub: newHub(o.Daemon, o.Interval)}
	var err error
	if filepath.IsAbs(address) {
		s.listener, err = api.Listen(address, o.Group)
	} else {
		s.token = newToken()
		s.listener, err = net.Listen("tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w", err)
	}
	s.http = http.Server{
		Handler: s.guard(s.routes()), ReadHeaderTimeout: patience, ReadTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: mostHeader,
	}
	return s, nil
}

// URL is the page's address with its token, or the socket's path. A browser keeps what
// follows '#' to itself.
func (s *Server) URL() string {
	if s.token == "" {
		return s.listener.Addr().String()
	}
	at := s.listener.Addr().(*net.TCPAddr)
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(at.Port)) + "/#token=" + s.token
}

// IsLoopback reports whether only this machine reaches the page.
func (s *Server) IsLoopback() bool {
	tcp, ok := s.listener.Addr().(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.http.Close() })
	defer stop()
	defer s.Close()
	if err := s.http.Serve(netutil.LimitListener(s.listener, mostClients)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// Close stops listening.
func (s *Server) Close() error { return s.listener.Close() }

// routes are the page's files, for everyone, and what it shows, for the token's owner.
func (s *Server) routes() http.Handler {
	page, _ := fs.Sub(files, "page") // the name is valid
	m := http.NewServeMux()
	m.Handle("/", http.FileServerFS(page))
	secret := func(path string, h http.HandlerFunc) { m.Handle("/"+path, s.locked(h)) }
	secret("events", s.events)
	secret("filter", checkFilter)
	secret("reasons", func(w http.ResponseWriter, _ *http.Request) { answer(w, live.Reasons) })
	secret("explain", s.document(s.explain))
	for path, d := range s.opts.Documents {
		secret(path, s.document(d))
	}
	return m
}

// document is a route that answers with a document.
func (s *Server) document(d Document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		document, err := d(r.Context(), r.URL.Query())
		if err != nil {
			code := http.StatusBadGateway
			if refused := (*api.SubjectError)(nil); errors.As(err, &refused) {
				code = http.StatusBadRequest
			}
			http.Error(w, err.Error(), code)
			return
		}
		answer(w, document)
	}
}

// explain returns an api.Explanation.
func (s *Server) explain(_ context.Context, q url.Values) (any, error) {
	subject := q.Get("subject")
	if _, err := api.ParseSubject(subject); err != nil {
		return nil, err
	}
	return s.opts.Daemon.Explain(subject)
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
