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

	"github.com/scon-project/scon/internal/httpconn"
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
	return serve(ctx, p, &httpconn.Server{Handler: namesThisMachine(h), Asked: p.Asked, HeaderTimeout: headerTime}, log)
}

// Public is a listener at an open address. Asked has to be the server's.
type Public struct {
	net.Listener
	mu     sync.Mutex
	open   map[*caller]bool // it has sent a request
	serial uint64
}

// caller is a connection.
type caller struct {
	net.Conn
	public *Public
	peer   netip.Addr
	serial uint64 // of its Accept
}

// NewPublic returns l with bounds.
func NewPublic(l net.Listener) *Public {
	return &Public{Listener: l, open: make(map[*caller]bool)}
}

// Accept waits for the next connection, and makes room for it.
func (p *Public) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &caller{Conn: conn, public: p}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.peer = at.Addr().Unmap().WithZone("")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	c.serial = p.serial
	p.open[c] = false
	if len(p.open) > mostOpen {
		victim := p.victim()
		delete(p.open, victim)
		victim.Conn.Close()
	}
	return c, nil
}

// victim returns the connection that makes room for the latest: of the peer that has the
// most the oldest one without a request, or the oldest one if all have one.
func (p *Public) victim() (victim *caller) {
	count := make(map[netip.Addr]int)
	for c := range p.open {
		count[c.peer]++
	}
	before := func(a, b *caller) bool {
		switch {
		case count[a.peer] != count[b.peer]:
			return count[a.peer] > count[b.peer]
		case p.open[a] != p.open[b]:
			return !p.open[a]
		default:
			return a.serial < b.serial
		}
	}
	for c := range p.open {
		if c.serial != p.serial && (victim == nil || before(c, victim)) {
			victim = c
		}
	}
	return victim
}

// Asked notes that a connection has sent a request.
func (p *Public) Asked(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := conn.(*caller)
	if _, has := p.open[c]; has { // it has not made room
		p.open[c] = true
	}
}

func (c *caller) Close() error {
	c.public.mu.Lock()
	defer c.public.mu.Unlock()
	delete(c.public.open, c)
	return c.Conn.Close()
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
