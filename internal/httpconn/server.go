// Package httpconn serves and asks by HTTP/1.1, with one request on each connection. Package
// net/http reads and writes the messages. Its Server and Transport are left out: they link
// TLS and proxies, a sixth of the program, which no socket has.
package httpconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// Server answers requests. All fields but Handler and MaxHeader may be zero.
type Server struct {
	Handler http.Handler
	// MaxHeader bounds a request's header, in bytes.
	MaxHeader int64
	// HeaderTimeout bounds the time until a header has come, ReadTimeout that until the
	// body has, and WriteTimeout that for the answer; http.ResponseController changes the
	// last two. 0 is no bound.
	HeaderTimeout, ReadTimeout, WriteTimeout time.Duration
	// Grace is how long requests that are being answered may take when the server ends.
	Grace time.Duration
	// ConnContext returns the context of a connection's request, within ctx.
	ConnContext func(ctx context.Context, conn net.Conn) context.Context
	// Asked is called with a connection whose header has come.
	Asked func(conn net.Conn)
	Log   *slog.Logger

	mu     sync.Mutex
	open   map[net.Conn]bool // connections; true: its header has come
	served sync.WaitGroup
}

// again is the time until a connection is accepted after an error that passes.
const again = 100 * time.Millisecond

// Serve serves clients on l until ctx ends, which the contexts of requests do with it, then
// closes l. It is called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.open = make(map[net.Conn]bool)
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			s.end()
			return nil
		case isPassing(err):
			s.warn("accept a connection", err)
			time.Sleep(again)
		case err != nil:
			return err
		default:
			s.note(conn, false)
			s.served.Go(func() {
				defer s.close(conn)
				s.answer(ctx, conn)
			})
		}
	}
}

// isPassing reports whether an error of Accept is over when other files are closed.
func isPassing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) warn(what string, err error) {
	if s.Log != nil {
		s.Log.Warn(what, "error", err)
	}
}

// note notes a connection.
func (s *Server) note(conn net.Conn, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[conn] = asked
}

func (s *Server) close(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
	conn.Close()
}

// end closes connections that have not asked, and the others when they are answered or the
// grace period is over.
func (s *Server) end() {
	s.closeAll(false)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.served.Wait()
	}()
	select {
	case <-answered:
	case <-time.After(s.Grace):
		s.closeAll(true)
	}
}

func (s *Server) closeAll(asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn, has := range s.open {
		if asked || !has {
			conn.Close()
		}
	}
}

// answer answers the request of a connection.
func (s *Server) answer(ctx context.Context, conn net.Conn) {
	begin := time.Now()
	_ = conn.SetReadDeadline(after(begin, s.HeaderTimeout))
	r := s.receive(conn)
	if r == nil {
		return
	}
	s.note(conn, true)
	if s.Asked != nil {
		s.Asked(conn)
	}
	_ = conn.SetReadDeadline(after(begin, s.ReadTimeout))
	_ = conn.SetWriteDeadline(after(time.Now(), s.WriteTimeout))
	if s.ConnContext != nil {
		ctx = s.ConnContext(ctx, conn)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r = r.WithContext(ctx)
	if r.Body == http.NoBody {
		watch(conn, cancel)
	} else {
		r.Body = &body{ReadCloser: r.Body, ended: sync.OnceFunc(func() { watch(conn, cancel) })}
	}
	w := newResponse(conn, r)
	if s.handle(w, r) {
		w.finish()
		discard(r.Body)
	}
}

// after returns a deadline, none for a limit of 0.
func after(begin time.Time, limit time.Duration) time.Time {
	if limit == 0 {
		return time.Time{}
	}
	return begin.Add(limit)
}

// receive reads a request's header. It answers what is no request, and returns nil.
func (s *Server) receive(conn net.Conn) *http.Request {
	limited := &io.LimitedReader{R: conn, N: s.MaxHeader}
	r, err := http.ReadRequest(bufio.NewReader(limited))
	if err != nil {
		refuse(conn, err, limited.N <= 0)
		return nil
	}
	limited.N = math.MaxInt64 // the body's length is the handler's matter
	if r.Header.Get("Expect") == "100-continue" {
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	r.RemoteAddr = conn.RemoteAddr().String()
	return r
}

// discard reads what has come of an answered request, which would reset the connection before
// the client has read the answer: a part of what is too long.
func discard(rest io.Reader) { _, _ = io.CopyN(io.Discard, rest, 64<<10) }

// handle reports whether the handler has returned, and not panicked.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) (ok bool) {
	defer func() {
		if failed := recover(); failed != nil {
			s.warn("answer "+r.URL.Path, fmt.Errorf("panic: %v\n%s", failed, debug.Stack()))
		}
	}()
	s.Handler.ServeHTTP(w, r)
	return true
}

// linger bounds the time for an answer to what is no request.
const linger = 500 * time.Millisecond

// refuse answers what is no request. A client that has left or sends nothing gets no answer.
func refuse(conn net.Conn, err error, tooLong bool) {
	status := http.StatusBadRequest
	switch {
	case tooLong:
		status = http.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
		return
	}
	_ = conn.SetDeadline(time.Now().Add(linger))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", status, http.StatusText(status))
	discard(conn)
}

// body is a request's. ended is called at its end.
type body struct {
	io.ReadCloser
	ended func()
}

func (b *body) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, io.EOF) {
		b.ended()
	}
	return n, err
}

// watch calls gone when a client whose whole request has come closes the connection.
func watch(conn net.Conn, gone func()) {
	_ = conn.SetReadDeadline(time.Time{})
	go func() {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			gone()
		}
	}()
}
