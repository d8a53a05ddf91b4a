package pipe

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A probe is a TCP connection from the client's network namespace to the name
// that it wants. It carries a token, which tells the broker at whose socket it
// arrived: nothing is concluded from rules or addresses.
type probes struct {
	turn chan struct{} // bounds those under way

	mu      sync.Mutex
	arrived map[token]*name // nil while it has not
}

type token [16]byte

// errElsewhere is of a probe that came through, but not to a name.
var errElsewhere = errors.New("somebody else's")

const (
	// probeTimeout is how long the network may take; a packet that is lost comes
	// again after a second. Rules that drop packets look like this.
	probeTimeout = 2 * time.Second
	mostProbes   = 64
)

func (p *probes) init() {
	p.turn = make(chan struct{}, mostProbes)
	p.arrived = make(map[token]*name)
}

// resolve finds the name that a connection of the client to addr arrives at,
// and what the client is called there.
func (s *session) resolve(addr netip.AddrPort) (n *name, local netip.AddrPort, err error) {
	p := &s.b.probes
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-s.b.ctx.Done():
		return nil, local, unix.ECONNABORTED
	}
	var t token
	if _, err := rand.Read(t[:]); err != nil {
		return nil, local, err
	}
	p.mu.Lock()
	p.arrived[t] = nil
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		n = p.arrived[t]
		delete(p.arrived, t)
		p.mu.Unlock()
		if err == nil && n == nil {
			err = fmt.Errorf("%v is %w: %w", addr, errElsewhere, unix.ECONNREFUSED)
		}
	}()
	var conn net.Conn
	err = s.inNetns(func() error {
		dialer := net.Dialer{Timeout: probeTimeout}
		conn, err = dialer.DialContext(s.b.ctx, "tcp4", addr.String())
		return err
	})
	if err != nil {
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			err = unix.ETIMEDOUT
		}
		return nil, local, fmt.Errorf("ask the network about %v: %w", addr, err)
	}
	defer discard(conn)
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return nil, local, err
	}
	local = conn.LocalAddr().(*net.TCPAddr).AddrPort()
	if _, err := conn.Write(t[:]); err != nil {
		return nil, local, fmt.Errorf("%v does not answer, it is %w: %w", addr, errElsewhere, unix.ECONNREFUSED)
	}
	// The other side closes when it has seen the token, or is none of ours.
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return nil, local, fmt.Errorf("%v does not answer, it is %w: %w", addr, errElsewhere, unix.ECONNREFUSED)
	}
	return nil, local, nil
}

// receive notes where a probe has arrived.
func (p *probes) receive(conn net.Conn, n *name) {
	defer discard(conn)
	if err := conn.SetDeadline(time.Now().Add(probeTimeout)); err != nil {
		return
	}
	var t token
	if _, err := io.ReadFull(conn, t[:]); err != nil {
		return
	}
	p.mu.Lock()
	_, known := p.arrived[t]
	if known {
		p.arrived[t] = n
	}
	p.mu.Unlock()
	if known {
		_, _ = conn.Write([]byte{1})
	}
}

// discard ends a probe without leaving anything to wait for.
func discard(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}
