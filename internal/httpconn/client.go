package httpconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Ask sends a request on a connection, and returns the answer. It takes ownership of the
// connection: the caller closes the answer's body, which closes it. The end of the request's
// context does that, too. The error is io.EOF if the other end closes without an answer.
func Ask(conn net.Conn, r *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { conn.Close() })
	resp, err := ask(conn, r)
	if err != nil {
		stop()
		conn.Close()
		if why := r.Context().Err(); why != nil {
			err = why
		}
		return nil, err
	}
	resp.Body = answer{resp.Body, conn, stop}
	return resp, nil
}

func ask(conn net.Conn, r *http.Request) (*http.Response, error) {
	r.Close = true
	if err := r.Write(conn); err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, io.EOF
	}
	return resp, err
}

// Dial connects to a unix socket.
func Dial(socket string) (net.Conn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
}

// answer is the body of an answer, whose rest is not read.
type answer struct {
	io.Reader
	conn net.Conn
	stop func() bool
}

func (a answer) Close() error {
	if a.stop() {
		return a.conn.Close()
	}
	return nil // the context has closed it
}
