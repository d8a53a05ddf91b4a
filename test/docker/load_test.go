package docker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// load is traffic from the edge to an echo container until it is stopped. Every
// echoed byte is checked.
type load struct {
	conn     net.Conn
	received atomic.Uint64 // verified payload bytes
	stopping chan struct{}
	done     chan error
}

// startStream starts a TCP stream of random bytes, at most 32 MB/s: the echo must be
// complete and in order.
func startStream(t *testing.T, e *Engine) *load {
	t.Helper()
	return startLoad(t, e, "tcp4", func(l *load) error {
		sent := make(chan error, 1)
		go func() { sent <- l.send() }()
		return errors.Join(l.compare(), <-sent)
	})
}

// startExchange starts UDP requests, at most a thousand a second: each must be
// answered before the next one, and none is repeated.
func startExchange(t *testing.T, e *Engine) *load {
	t.Helper()
	return startLoad(t, e, "udp4", (*load).exchange)
}

func startLoad(t *testing.T, e *Engine, network string, run func(*load) error) *load {
	t.Helper()
	conn, err := e.DialEdge(network, fmt.Sprintf("%s:%d", hostAddr, echoPort))
	if err != nil {
		t.Fatalf("dial echo: %v", err)
	}
	l := &load{conn: conn, stopping: make(chan struct{}), done: make(chan error, 1)}
	t.Cleanup(func() { conn.Close() })
	go func() { l.done <- run(l) }()
	return l
}

// stop ends the load and returns its error.
func (l *load) stop() error {
	close(l.stopping)
	_ = l.conn.SetReadDeadline(time.Now().Add(patience))
	err := <-l.done
	return errors.Join(err, l.conn.Close())
}

// port returns the edge's port of the connection.
func (l *load) port() uint16 { return localPort(l.conn) }

// proceed waits until n more bytes have come back.
func (l *load) proceed(t *testing.T, what string, bytes uint64) {
	t.Helper()
	want := l.received.Load() + bytes
	eventually(t, what, func() error {
		select {
		case err := <-l.done:
			l.done <- err
			t.Fatalf("%s: load ended: %v", what, err)
		default:
		}
		if got := l.received.Load(); got < want {
			return fmt.Errorf("%d of %d bytes were echoed", bytes-(want-got), bytes)
		}
		return nil
	})
}

// random returns the same source for both ends of the comparison.
func random() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{}) }

func (l *load) send() error {
	source, buf := random(), make([]byte, 32<<10)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-l.stopping:
			return l.conn.(*net.TCPConn).CloseWrite()
		case <-pace.C:
		}
		_, _ = source.Read(buf) // never fails
		if _, err := l.conn.Write(buf); err != nil {
			return err
		}
	}
}

func (l *load) compare() error {
	source, got, want := random(), make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, err := io.ReadFull(l.conn, got)
		_, _ = source.Read(want)
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("stream: bytes differ from those sent after byte %d", l.received.Load())
		}
		l.received.Add(uint64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stream: after %d bytes: %w", l.received.Load(), err)
		}
	}
}

func (l *load) exchange() error {
	source, request, reply := random(), make([]byte, 200), make([]byte, 1500)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for number := uint64(0); ; number++ {
		select {
		case <-l.stopping:
			return nil
		case <-pace.C:
		}
		_, _ = source.Read(request)
		binary.BigEndian.PutUint64(request, number)
		if _, err := l.conn.Write(request); err != nil {
			return fmt.Errorf("request %d: %w", number, err)
		}
		if err := l.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := l.conn.Read(reply)
		if err != nil {
			return fmt.Errorf("reply %d: %w", number, err)
		}
		if !bytes.Equal(reply[:n], request) {
			return fmt.Errorf("reply %d: %x, sent %x", number, reply[:n], request)
		}
		l.received.Add(uint64(n))
	}
}

// localPort returns the local port of a TCP or UDP connection.
func localPort(conn net.Conn) uint16 {
	switch a := conn.LocalAddr().(type) {
	case *net.TCPAddr:
		return uint16(a.Port)
	case *net.UDPAddr:
		return uint16(a.Port)
	}
	return 0
}
