package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// callTimeout limits one call; the longest answer is a full table of flows.
	callTimeout = 30 * time.Second
	// processTimeout limits the request for a service's process. One that hangs is noticed
	// before.
	processTimeout = 4 * time.Second
)

// Identity describes a service: its answers carry Service, error messages the other fields.
type Identity struct {
	Service string // as in package state
	Name    string // "daemon"
	Start   string // how to start it: "start one with 'scon up'"
}

// Service is a client of a service. A call returns ErrNotRunning if nothing answers at
// the socket, ErrHangs if a process has the socket and says nothing for three seconds, and
// *Error if the service refuses the request.
type Service struct {
	id     Identity
	socket string
	pid    atomic.Int32 // of the process at the socket, as last seen
}

// Connect returns a client of the service at a unix socket. Every call opens and closes
// its own connection.
func Connect(id Identity, socket string) *Service {
	return &Service{id: id, socket: socket}
}

// Process has the fields that every service's document at StatusPath contains.
type Process struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// When it began to serve, in milliseconds since 1970: `scon reload` begins anew in the
	// same process.
	StartedMS int64 `json:"started_ms"`
}

// Process returns the service's process. It waits for processTimeout only, so that a
// service that hangs does not keep the others from being asked.
func (s *Service) Process() (p Process, err error) {
	return p, s.call(processTimeout, http.MethodGet, StatusPath, nil, &p)
}

// Metrics writes the service's counters in Prometheus' text format.
func (s *Service) Metrics(w io.Writer) error {
	return s.watched(callTimeout, func(ctx context.Context) error {
		text, err := s.ask(ctx, http.MethodGet, MetricsPath, nil)
		if err != nil {
			return err
		}
		defer text.Close()
		if _, err := io.Copy(w, text); err != nil {
			return fmt.Errorf("read the metrics of the %s at %s: %w", s.id.Name, s.socket, err)
		}
		return nil
	})
}

// Stop asks the service to end; it does not wait for the end.
func (s *Service) Stop() error { return s.Post(stopPath, struct{}{}, &struct{}{}) }

// Get reads the JSON document at a path.
func (s *Service) Get(path string, q url.Values, answer any) error {
	return s.call(callTimeout, http.MethodGet, path+"?"+q.Encode(), nil, answer)
}

// Post sends a JSON document to a path and reads the answer.
func (s *Service) Post(path string, document, answer any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	return s.call(callTimeout, http.MethodPost, path, bytes.NewReader(body), answer)
}

// Stream returns a stream of JSON documents that lasts until ctx or the service ends. The
// caller closes it.
func (s *Service) Stream(ctx context.Context, path string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	var body io.ReadCloser
	err := s.watched(callTimeout, func(begin context.Context) (err error) {
		defer context.AfterFunc(begin, cancel)()
		body, err = s.ask(ctx, http.MethodGet, path, nil)
		return err
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return stream{body, cancel}, nil
}

// stream is a body that ends its request when it is closed.
type stream struct {
	io.ReadCloser
	end context.CancelFunc
}

func (s stream) Close() error {
	defer s.end()
	return s.ReadCloser.Close()
}

func (s *Service) call(limit time.Duration, method, target string, body io.Reader, answer any) error {
	return s.watched(limit, func(ctx context.Context) error {
		document, err := s.ask(ctx, method, target, body)
		if err != nil {
			return err
		}
		defer document.Close()
		if err := json.NewDecoder(document).Decode(answer); err != nil {
			return fmt.Errorf("read the answer of the %s at %s: %w", s.id.Name, s.socket, err)
		}
		return nil
	})
}

// ask returns the body of a successful answer, which the caller closes.
func (s *Service) ask(ctx context.Context, method, target string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://scon"+target, body)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", target, err)
	}
	resp, err := s.send(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, &notRunningError{s.id, s.socket}
	case errors.Is(err, syscall.EAGAIN): // its queue of connections is full
		return nil, s.hangs()
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("permission denied for %s; run as root, or, to read, as a member of the group socket_group of the configuration", s.socket)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil, fmt.Errorf("the %s at %s closed the connection: it is ending, or has too many clients", s.id.Name, s.socket)
	case err != nil:
		return nil, fmt.Errorf("ask the %s at %s: %w", s.id.Name, s.socket, err)
	}
	if other := resp.Header.Get(serviceHeader); other != "" && other != s.id.Service {
		resp.Body.Close()
		return nil, fmt.Errorf("%s is the socket of the service %q, not of the %s; omit --socket to use the default one", s.socket, other, s.id.Name)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var r refusal
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || r.Error == "" {
		r.Error = fmt.Sprintf("the %s at %s answered %s to %s", s.id.Name, s.socket, resp.Status, req.URL.Path)
	}
	return nil, &Error{Status: resp.StatusCode, Message: r.Error}
}
