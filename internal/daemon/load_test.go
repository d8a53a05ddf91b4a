package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// stream is random bytes both ways over a connection, until it is stopped.
type stream struct {
	c                 *connection
	requests, replies atomic.Uint64 // bytes that arrived
	stopping          chan struct{}
	done              chan error
}

// startStream begins with a few MB/s each way.
func startStream(c *connection) *stream {
	s := &stream{c: c, stopping: make(chan struct{}), done: make(chan error, 4)}
	for dir, e := range c.ends() {
		arrived := [2]*atomic.Uint64{&s.requests, &s.replies}[dir]
		go func() { s.done <- s.send(e[0], uint64(dir)) }()
		go func() { s.done <- compare(e[1], uint64(dir), arrived) }()
	}
	return s
}

func (s *stream) send(to net.Conn, seed uint64) error {
	source, _ := random(seed)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	buf := make([]byte, 4<<10)
	for {
		select {
		case <-s.stopping:
			return to.(*net.TCPConn).CloseWrite()
		case <-pace.C:
		}
		_, _ = source.Read(buf) // never fails
		if _, err := to.Write(buf); err != nil {
			return err
		}
	}
}

// compare reads to the end, and compares with what was sent.
func compare(from net.Conn, seed uint64, arrived *atomic.Uint64) error {
	source, _ := random(seed)
	got, want := make([]byte, 4<<10), make([]byte, 4<<10)
	_ = from.SetReadDeadline(time.Time{})
	for {
		n, err := from.Read(got)
		_, _ = source.Read(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("other bytes than sent after %d", arrived.Load())
		}
		arrived.Add(uint64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", arrived.Load(), err)
		}
	}
}

// proceed waits until so many bytes more have arrived each way.
func (s *stream) proceed(t *testing.T, more uint64) {
	t.Helper()
	requests, replies := s.requests.Load()+more, s.replies.Load()+more
	eventually(t, "the stream goes on", func() error {
		if a, b := s.requests.Load(), s.replies.Load(); a < requests || b < replies {
			return fmt.Errorf("%d and %d bytes are missing", int64(requests-a), int64(replies-b))
		}
		return nil
	})
}

// stop ends the stream: all must have arrived.
func (s *stream) stop(t *testing.T) {
	t.Helper()
	close(s.stopping)
	for _, e := range s.c.ends() {
		_ = e[0].SetReadDeadline(time.Now().Add(patience))
	}
	for range cap(s.done) {
		if err := <-s.done; err != nil {
			t.Error(err)
		}
	}
}
