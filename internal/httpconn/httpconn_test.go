package httpconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds what a working server does at once.
const patience = 20 * time.Second

// bed is a server at a unix socket.
type bed struct {
	t      *testing.T
	socket string
	stop   func()
	ended  chan error
}

func serve(t *testing.T, s *Server) *bed {
	t.Helper()
	b := &bed{t: t, socket: filepath.Join(t.TempDir(), "s"), ended: make(chan error, 1)}
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxHeader == 0 {
		s.MaxHeader = 4 << 10
	}
	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	go func() {
		defer close(b.ended)
		b.ended <- s.Serve(ctx, l)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bed) dial() net.Conn {
	b.t.Helper()
	conn, err := Dial(b.socket)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// raw sends bytes and returns all that is answered.
func (b *bed) raw(text string) string {
	b.t.Helper()
	conn := b.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		b.t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		b.t.Errorf("%.40q: %v", text, err)
	}
	return string(answer)
}

func (b *bed) ask(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://scon/", body)
	if err != nil {
		b.t.Fatal(err)
	}
	return Ask(b.dial(), r)
}

// Short answers have a length, longer ones are in chunks, and none is where there can be none.
// Clients of others read them as this one does, and find a connection for each request.
func TestAnswers(t *testing.T) {
	long := strings.Repeat("all of it. ", 10000)
	for name, c := range map[string]struct {
		method  string
		handler http.HandlerFunc
		status  int
		body    string
		chunked bool
	}{
		"nothing": {"GET", func(http.ResponseWriter, *http.Request) {}, 200, "", false},
		"short":   {"GET", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) }, 404, "no\n", false},
		"long":    {"GET", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) }, 200, long, true},
		"many": {"GET", func(w http.ResponseWriter, _ *http.Request) {
			for part := range strings.SplitSeq(long, " ") {
				_, _ = io.WriteString(w, part)
			}
		}, 200, strings.ReplaceAll(long, " ", ""), true},
		"flushed": {"GET", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "one ")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "two")
		}, 200, "one two", true},
		"length": {"GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(long)))
			_, _ = io.WriteString(w, long)
		}, 200, long, false},
		"echo": {"POST", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, 200, "sent", false},
		"head": {"HEAD", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) }, 200, "", false},
		"204": {"GET", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			_, _ = io.WriteString(w, "ignored")
		}, 204, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := serve(t, &Server{Handler: c.handler})
			theirs := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				return Dial(b.socket)
			}}}
			for who, do := range map[string]func(*http.Request) (*http.Response, error){
				"ours": func(r *http.Request) (*http.Response, error) { return Ask(b.dial(), r) }, "theirs": theirs.Do, "theirs again": theirs.Do,
			} {
				r, err := http.NewRequest(c.method, "http://scon/", strings.NewReader("sent"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := do(r)
				if err != nil {
					t.Fatalf("%s: %v", who, err)
				}
				body, err := io.ReadAll(resp.Body)
				chunked := len(resp.TransferEncoding) > 0
				if err != nil || resp.StatusCode != c.status || string(body) != c.body || chunked != c.chunked || !resp.Close {
					t.Errorf("%s: %d, %d bytes, chunked %v, close %v: %v", who, resp.StatusCode, len(body), chunked, resp.Close, err)
				}
				resp.Body.Close()
			}
		})
	}
}

// A client of HTTP/1.0 gets no chunks.
func TestOldClient(t *testing.T) {
	long := strings.Repeat("x", 3*short)
	b := serve(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) })})
	head, body, _ := strings.Cut(b.raw("GET / HTTP/1.0\r\n\r\n"), "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.0 200 OK\r\n") || strings.Contains(head, "Transfer-Encoding") || body != long {
		t.Errorf("%q and %d bytes", head, len(body))
	}
}

// What is no request is refused; who sends nothing in time is not answered.
func TestRefusals(t *testing.T) {
	b := serve(t, &Server{Handler: http.NotFoundHandler(), HeaderTimeout: 50 * time.Millisecond})
	for text, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: scon\r\n\r\n":                                   "HTTP/1.1 404 ",
		"GET /\r\n\r\n":                                                          "HTTP/1.1 400 ",
		"\x16\x03\x01\x00\x05hello\r\n\r\n":                                      "HTTP/1.1 400 ",
		"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n":       "HTTP/1.1 400 ",
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 4<<10) + "\r\n\r\n":        "HTTP/1.1 431 ",
		"GET /" + strings.Repeat("x", 4<<10) + " HTTP/1.1\r\nHost: scon\r\n\r\n": "HTTP/1.1 431 ",
		"GET nowhere HTTP/1.1\r\nHost: scon\r\n\r\n":                             "HTTP/1.1 400 ",
		"":                         "",
		"GET / HTTP/1.1\r\nHost: ": "",
	} {
		if got := b.raw(text); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}

// A client that asks whether it may send gets leave.
func TestContinue(t *testing.T) {
	b := serve(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })})
	conn := b.dial()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: scon\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	fmt.Fprint(conn, "sent")
	rest, err := io.ReadAll(in)
	if err != nil || !strings.HasSuffix(string(rest), "\r\n\r\nsent") {
		t.Errorf("%q, %v", rest, err)
	}
}

// The context of a request ends when its client goes, with a body and without, and not before,
// whatever the time for reading was.
func TestClientGoes(t *testing.T) {
	ended := make(chan error)
	came := make(chan struct{})
	b := serve(t, &Server{ReadTimeout: 10 * time.Millisecond, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			ended <- errors.New("the context has ended while the client waits")
			return
		case <-time.After(50 * time.Millisecond):
		}
		came <- struct{}{}
		<-r.Context().Done()
		ended <- nil
	})})
	for _, body := range []io.Reader{nil, strings.NewReader("body")} {
		ctx, leave := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := b.ask(ctx, "POST", body)
			failed <- err
		}()
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-came:
		}
		leave()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the client's error is %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// What a handler sends to a client that has gone fails when it is flushed.
func TestFlushFails(t *testing.T) {
	gone, failed := make(chan struct{}), make(chan error)
	b := serve(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-gone
		_, _ = io.WriteString(w, "answer")
		failed <- http.NewResponseController(w).Flush()
	})})
	conn := b.dial()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: scon\r\n\r\n")
	conn.Close()
	close(gone)
	if err := <-failed; err == nil {
		t.Error("no error")
	}
}

// A handler that panics ends its connection and nothing else.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	b := serve(t, &Server{Log: slog.New(slog.NewTextHandler(&log, nil)), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			panic("no such method")
		}
	})})
	if _, err := b.ask(t.Context(), "POST", nil); !errors.Is(err, io.EOF) {
		t.Errorf("the answer is %v", err)
	}
	if resp, err := b.ask(t.Context(), "GET", nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("after it: %v, %v", resp, err)
	}
	if !strings.Contains(log.String(), "no such method") {
		t.Errorf("the log is %q", log.String())
	}
}

// When the server ends, a request that is being answered is, another connection is closed at
// once, and what takes longer than the grace period is cut off.
func TestEnd(t *testing.T) {
	for _, grace := range []time.Duration{patience, time.Millisecond} {
		t.Run(fmt.Sprint(grace), func(t *testing.T) {
			began, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			release := func() { once.Do(func() { close(goOn) }) }
			defer release()
			b := serve(t, &Server{Grace: grace, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(began)
				<-r.Context().Done() // the server's ends with it
				<-goOn
			})})
			idle := b.dial()
			answered := make(chan error)
			go func() {
				_, err := b.ask(t.Context(), "GET", nil)
				answered <- err
			}()
			<-began
			b.stop()
			if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a connection without a request: %v", err)
			}
			if grace == patience {
				release()
			}
			if err := <-answered; (err == nil) != (grace == patience) {
				t.Errorf("the request: %v", err)
			}
			if _, err := Dial(b.socket); err == nil {
				t.Error("the socket still answers")
			}
		})
	}
}

// A server of others that closes without an answer, cuts one short, or keeps the connection.
func TestAsk(t *testing.T) {
	for answer, want := range map[string]string{
		"": "EOF", "HTTP/1.1 200": "EOF", "nonsense\r\n\r\n": "malformed",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut": "unexpected EOF",
		"HTTP/1.1 200 OK\r\n\r\nto the end":               "",
	} {
		ours, others := net.Pipe()
		go func() {
			defer others.Close()
			if _, err := http.ReadRequest(bufio.NewReader(others)); err == nil {
				_, _ = io.WriteString(others, answer)
			}
		}()
		r, err := http.NewRequest("GET", "http://scon/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := Ask(ours, r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
	}
}

// A stream ends with the context of its request.
func TestStreamEnds(t *testing.T) {
	b := serve(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "line\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})})
	ctx, end := context.WithCancel(t.Context())
	resp, err := b.ask(ctx, "GET", nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); line != "line\n" {
		t.Fatalf("%q, %v", line, err)
	}
	end()
	if b, err := in.ReadByte(); err == nil {
		t.Errorf("got %q", b)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}
