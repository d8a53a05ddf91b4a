package httpconn

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// short is the length, in bytes, up to which an answer is sent at once, with its length.
const short = 2048

// response is the answer to a request: a short one with its length, a longer one in chunks,
// or, for a client of HTTP/1.0, up to the connection's end. It also does what
// http.ResponseController asks for.
type response struct {
	conn    net.Conn
	request *http.Request
	header  http.Header
	status  int           // 0 before WriteHeader
	body    *bufio.Writer // to pieces, which sends the header before the first one
	out     *bufio.Writer // to the connection
	sent    bool          // the header
	chunked bool
}

func newResponse(conn net.Conn, r *http.Request) *response {
	w := &response{conn: conn, request: r, header: make(http.Header), out: bufio.NewWriter(conn)}
	w.body = bufio.NewWriterSize(pieces{w}, short)
	return w
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.bodiless() {
		return len(b), nil
	}
	return w.body.Write(b)
}

// SetReadDeadline bounds the time until the rest of the request has come.
func (w *response) SetReadDeadline(t time.Time) error { return w.conn.SetReadDeadline(t) }

// SetWriteDeadline bounds the time until the client has read what is sent.
func (w *response) SetWriteDeadline(t time.Time) error { return w.conn.SetWriteDeadline(t) }

// FlushError sends what was written.
func (w *response) FlushError() error {
	if err := w.flush(false); err != nil {
		return err
	}
	return w.out.Flush()
}

func (w *response) flush(whole bool) error {
	w.WriteHeader(http.StatusOK)
	w.sendHeader(whole)
	return w.body.Flush()
}

// finish sends the rest, to a client that may have gone.
func (w *response) finish() {
	if w.flush(true) == nil && w.chunked {
		_, _ = io.WriteString(w.out, "0\r\n\r\n")
	}
	_ = w.out.Flush()
}

// bodiless reports whether the answer has no body.
func (w *response) bodiless() bool {
	return w.request.Method == http.MethodHead || w.status == http.StatusNoContent || w.status == http.StatusNotModified
}

// sendHeader writes the header, once. whole says that the body is what body has buffered.
// Errors are those of the next write.
func (w *response) sendHeader(whole bool) {
	if w.sent {
		return
	}
	w.sent = true
	version := min(w.request.ProtoMinor, 1)
	switch h := w.header; {
	case w.bodiless(), h.Get("Content-Length") != "":
	case whole:
		h.Set("Content-Length", strconv.Itoa(w.body.Buffered()))
	case version == 1:
		w.chunked = true
		h.Set("Transfer-Encoding", "chunked")
	}
	w.header.Set("Connection", "close")
	w.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	fmt.Fprintf(w.out, "HTTP/1.%d %d %s\r\n", version, w.status, http.StatusText(w.status))
	_ = w.header.Write(w.out)
	_, _ = io.WriteString(w.out, "\r\n")
}

// pieces are those of the body.
type pieces struct{ w *response }

func (p pieces) Write(b []byte) (int, error) {
	p.w.sendHeader(false)
	if p.w.chunked {
		fmt.Fprintf(p.w.out, "%x\r\n", len(b))
		defer io.WriteString(p.w.out, "\r\n")
	}
	return p.w.out.Write(b)
}
