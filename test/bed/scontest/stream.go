package scontest

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

// Stream sends random bytes in both directions of a connection, until it is stopped.
type Stream struct {
	C                 *Connection
	Requests, Replies atomic.Uint64 // bytes that arrived
	stopping          chan struct{}
	done              chan error
}

// StartStream starts a stream of a few MB/s in each direction.
func StartStream(c *Connection) *Stream {
	s := &Stream{C: c, stopping: make(chan struct{}), done: make(chan error, 4)}
	for dir, e := range c.Ends() {
		arrived := [2]*atomic.Uint64{&s.Requests, &s.Replies}[dir]
		go func() { s.done <- s.send(e[0], uint64(dir)) }()
		go func() { s.done <- compare(e[1], uint64(dir), arrived) }()
	}
	return s
}

func (s *Stream) send(to net.Conn, seed uint64) error {
	source, _ := Random(seed)
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

// compare reads until EOF and compares the bytes with those sent.
func compare(from net.Conn, seed uint64, arrived *atomic.Uint64) error {
	source, _ := Random(seed)
	got, want := make([]byte, 4<<10), make([]byte, 4<<10)
	_ = from.SetReadDeadline(time.Time{})
	for {
		n, err := from.Read(got)
		_, _ = source.Read(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("bytes differ from those sent after byte %d", arrived.Load())
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

// Proceed waits until that many more bytes have arrived in each direction.
func (s *Stream) Proceed(t *testing.T, more uint64) {
	t.Helper()
	requests, replies := s.Requests.Load()+more, s.Replies.Load()+more
	Eventually(t, "the stream goes on", func() error {
		if a, b := s.Requests.Load(), s.Replies.Load(); a < requests || b < replies {
			return fmt.Errorf("%d and %d bytes are missing", int64(requests-a), int64(replies-b))
		}
		return nil
	})
}

// Stop ends the stream and fails unless all bytes have arrived.
func (s *Stream) Stop(t *testing.T) {
	t.Helper()
	close(s.stopping)
	for _, e := range s.C.Ends() {
		_ = e[0].SetReadDeadline(time.Now().Add(Patience))
	}
	for range cap(s.done) {
		if err := <-s.done; err != nil {
			t.Error(err)
		}
	}
}
