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
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/httpconn"
	"github.com/scon-project/scon/internal/live"
)

//go:embed page
var files embed.FS

// A Document is what the page asks for beside the feed, as JSON. The page shows an error
// in its place.
type Document func(ctx context.Context, q url.Values) (any, error)

// Options say what the page shows, and to whom.
type Options struct {
	// Feed is the daemon's, see live.Feed, or a Relay of it.
	Feed http.Handler
	// Documents by their paths: "explain", "history", "startup", "stages", "pipe", "doctor", "profile".
	Documents map[string]Document
	// Group may connect to a unix socket, beside root.
	Group string
}

// Bounds of what pages may take.
const (
	patience   = 10 * time.Second // for a page to read
	mostHeader = 16 << 10         // bytes
)

// Server is the page's server.
type Server struct {
	listener net.Listener
	token    string // "" at a unix socket
	opts     Options
}

// Listen listens at an address, HOST:PORT where port 0 is a free one, or at the path of a
// unix socket, which replaces a stale one.
func Listen(address string, o Options) (*Server, error) {
	s := &Server{opts: o}
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
	defer s.Close()
	bounded := api.NewPublic(s.listener)
	server := httpconn.Server{
		Handler: s.guard(s.routes()), Asked: bounded.Asked, MaxHeader: mostHeader, HeaderTimeout: patience, ReadTimeout: patience,
	}
	if err := server.Serve(ctx, bounded); err != nil {
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
	secret := func(path string, h http.Handler) { m.Handle("/"+path, s.locked(h)) }
	secret("events", s.opts.Feed)
	secret("filter", http.HandlerFunc(checkFilter))
	secret("reasons", Document(func(context.Context, url.Values) (any, error) { return live.Reasons, nil }))
	for path, d := range s.opts.Documents {
		secret(path, d)
	}
	return m
}

// ServeHTTP answers with the document.
func (d Document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	document, err := d(r.Context(), r.URL.Query())
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // to a page that may have gone
}

// refuse answers with an error: the service's that was asked, or that it was not.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusBadGateway
	refused, subject := (*api.Error)(nil), (*api.SubjectError)(nil)
	switch {
	case errors.As(err, &refused):
		code = refused.Status
	case errors.As(err, &subject):
		code = http.StatusBadRequest
	}
	http.Error(w, err.Error(), code)
}

// checkFilter refuses what is no filter.
func checkFilter(w http.ResponseWriter, r *http.Request) {
	if _, err := live.ParseFilter(r.URL.Query().Get("filter")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// Relay is the feed of a daemon that open asks.
type Relay func(ctx context.Context, q url.Values) (io.ReadCloser, error)

// ServeHTTP copies the feed as it comes.
func (open Relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	feed, err := open(r.Context(), r.URL.Query())
	if err != nil {
		refuse(w, err)
		return
	}
	defer feed.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Time{}) != nil { // the stream lasts
		return
	}
	for buffer := make([]byte, 64<<10); ; {
		n, err := feed.Read(buffer)
		if control.SetWriteDeadline(time.Now().Add(patience)) != nil {
			return
		}
		if _, failed := w.Write(buffer[:n]); failed != nil || control.Flush() != nil || err != nil {
			return
		}
	}
}
