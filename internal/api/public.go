package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// The addresses of metrics and probes are open to every process that reaches them. None of
// those may keep the others from an answer, and no page of another site may read one.

// Limits of an open address. mostOpen is of connections; one more closes the oldest of the
// peer that has the most, and first those that have not sent a request. headerTime is for
// the header of a request.
const (
	mostOpen   = 64
	headerTime = 2 * time.Second
)

// servePublic serves h on l until ctx ends.
func servePublic(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	p := NewPublic(l)
	return serve(ctx, p, &http.Server{Handler: namesThisMachine(h), ConnState: p.Note, ReadHeaderTimeout: headerTime}, log)
}

// Public is a listener at an open address. Note has to be the server's ConnState.
type Public struct {
	net.Listener
	mu     sync.Mutex
	open   map[net.Conn]*caller
	serial uint64
}

// caller is a connection.
type caller struct {
	peer   netip.Addr
	serial uint64 // of its Accept
	asked  bool   // it has sent a request that is not answered yet
}

// NewPublic returns l with bounds.
func NewPublic(l net.Listener) *Public {
	return &Public{Listener: l, open: make(map[net.Conn]*caller)}
}

// Accept waits for the next connection, and makes room for it.
func (p *Public) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &caller{}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.peer = at.Addr().Unmap().WithZone("")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	c.serial = p.serial
	p.open[conn] = c
	if len(p.open) > mostOpen {
		victim := p.victim()
		delete(p.open, victim)
		victim.Close()
	}
	return conn, nil
}

// victim returns the connection that makes room for the latest: of the peer that has the
// most the oldest one without a request, or the oldest one if all have one.
func (p *Public) victim() (victim net.Conn) {
	count := make(map[netip.Addr]int)
	for _, c := range p.open {
		count[c.peer]++
	}
	before := func(a, b *caller) bool {
		switch {
		case count[a.peer] != count[b.peer]:
			return count[a.peer] > count[b.peer]
		case a.asked != b.asked:
			return !a.asked
		default:
			return a.serial < b.serial
		}
	}
	var first *caller
	for conn, c := range p.open {
		if c.serial != p.serial && (first == nil || before(c, first)) {
			victim, first = conn, c
		}
	}
	return victim
}

// Note follows the state of a connection.
func (p *Public) Note(conn net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c := p.open[conn]; {
	case c == nil: // it has made room
	case s == http.StateClosed || s == http.StateHijacked:
		delete(p.open, conn)
	default:
		c.asked = s == http.StateActive
	}
}

// namesThisMachine refuses requests whose host is neither an address nor this machine's
// name: see IsAddress. No browser asks without a host.
func namesThisMachine(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if own, err := os.Hostname(); r.Host != "" && !IsAddress(r.Host) && (err != nil || !strings.EqualFold(hostOf(r.Host), own)) {
			http.Error(w, "ask by an address, by localhost, or by the name that 'hostname' prints on this machine", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// IsAddress reports whether a request's host is an address or localhost. By another name
// that leads here (DNS rebinding) a site's own page would ask, in the browser of whoever
// has opened it.
func IsAddress(host string) bool {
	name := hostOf(host)
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost"
}

// hostOf is a request's host without the port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}
