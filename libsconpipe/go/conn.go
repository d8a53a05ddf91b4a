//go:build cgo

package sconpipe

// #include <sconpipe.h>
import "C"

import (
	"errors"
	"io"
	"net"
	"time"
	"unsafe"
)

// Conn is a connection, a net.Conn. Several goroutines may call its methods.
type Conn struct {
	socket        *socket
	local, remote Addr
}

var _ net.Conn = (*Conn)(nil)

func newConn(s *socket) *Conn { return &Conn{socket: s, local: s.name(false), remote: s.name(true)} }

// Read receives at most as many bytes as b has room for; io.EOF at the end.
func (c *Conn) Read(b []byte) (int, error) {
	d := &c.socket.in
	d.call.Lock()
	defer d.call.Unlock()
	n, err := c.socket.try(d, func() (int, error) {
		if len(b) == 0 {
			return 0, nil
		}
		n, err := C.pd_recv_copy(c.socket.sid, unsafe.Pointer(&b[0]), C.size_t(len(b)))
		return int(n), err
	})
	if err == nil && n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, c.wrap("read", err)
}

// Write sends all of b, or returns an error and the bytes sent before it.
func (c *Conn) Write(b []byte) (sent int, err error) {
	d := &c.socket.out
	d.call.Lock()
	defer d.call.Unlock()
	for first := true; first || sent < len(b); first = false {
		n, err := c.socket.try(d, func() (int, error) {
			if len(b) == 0 {
				return 0, nil
			}
			n, err := C.pd_send(c.socket.sid, unsafe.Pointer(&b[sent]), C.size_t(len(b)-sent))
			return int(n), err
		})
		sent += n
		if err != nil {
			return sent, c.wrap("write", err)
		}
	}
	return sent, nil
}

// Close closes the connection. The peer can still read what was written.
func (c *Conn) Close() error { return c.wrap("close", c.socket.close()) }

// CloseWrite ends the sending direction; the peer reads io.EOF.
func (c *Conn) CloseWrite() error {
	c.socket.mu.RLock()
	defer c.socket.mu.RUnlock()
	if c.socket.over {
		return c.wrap("close", net.ErrClosed)
	}
	if n, err := C.pd_shutdown(c.socket.sid, C.SHUT_WR); n < 0 {
		return c.wrap("close", err)
	}
	return nil
}

// Engine returns the engine that copies the bytes.
func (c *Conn) Engine() (Engine, error) {
	c.socket.mu.RLock()
	defer c.socket.mu.RUnlock()
	if c.socket.over {
		return 0, c.wrap("get", net.ErrClosed)
	}
	var engine C.int
	size := C.socklen_t(C.sizeof_int)
	if n, err := C.pd_getsockopt(c.socket.sid, C.SOL_PD, C.PD_ENGINE, unsafe.Pointer(&engine), &size); n < 0 {
		return 0, c.wrap("get", err)
	}
	return Engine(engine), nil
}

// LocalAddr returns an Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns an Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline bounds Read and Write; see net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds Read.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.socket.setDeadline(&c.socket.in, t) }

// SetWriteDeadline bounds Write.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.socket.setDeadline(&c.socket.out, t) }

func (s *socket) setDeadline(d *side, t time.Time) error {
	if isClosed(s.closed) {
		return net.ErrClosed
	}
	d.deadline.set(t)
	return nil
}

func (c *Conn) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: "pipe", Source: c.local, Addr: c.remote, Err: err}
}

// Listener accepts connections to a name. It is a net.Listener.
type Listener struct {
	socket *socket
	addr   Addr
}

var _ net.Listener = (*Listener)(nil)

// Accept returns the oldest waiting connection.
func (l *Listener) Accept() (net.Conn, error) {
	d := &l.socket.in
	sid, err := l.socket.try(d, func() (int, error) {
		sid, err := C.pd_accept(l.socket.sid, nil, nil)
		return int(sid), err
	})
	if err != nil {
		return nil, l.wrap("accept", err)
	}
	s := newSocket(C.int(sid))
	if err = set(s.sid, C.PD_NONBLOCK, 1); err == nil {
		err = s.poll()
	}
	if err != nil {
		C.pd_close(s.sid)
		return nil, l.wrap("accept", err)
	}
	return newConn(s), nil
}

// Close releases the name. Accepted connections stay open.
func (l *Listener) Close() error { return l.wrap("close", l.socket.close()) }

// Addr returns an Addr.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline bounds Accept.
func (l *Listener) SetDeadline(t time.Time) error { return l.socket.setDeadline(&l.socket.in, t) }

func (l *Listener) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: "pipe", Addr: l.addr, Err: err}
}
