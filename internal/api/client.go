package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"
)

// callTimeout bounds one call; the longest answer is a full table of flows.
const callTimeout = 30 * time.Second

var _ Backend = (*Client)(nil)

// Client asks a daemon over its socket. Its methods are Backend's; a daemon
// that does not answer is ErrNotRunning, a refusal is *Error.
type Client struct {
	socket string
	http   http.Client
}

// Dial makes a client of the daemon at the unix socket. Nothing is opened
// until a call, and nothing stays open after it.
func Dial(socket string) *Client {
	var d net.Dialer
	return &Client{
		socket: socket,
		http: http.Client{
			Timeout: callTimeout,
			Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return d.DialContext(ctx, "unix", socket)
				},
			},
		},
	}
}

// Status is the daemon's state.
func (c *Client) Status() (s Status, err error) {
	return s, c.get("/v1/status", nil, &s)
}

// Flows are the Conentries of one container, or of all.
func (c *Client) Flows(container string) (f []Flow, err error) {
	return f, c.get("/v1/flows", url.Values{"container": {container}}, &f)
}

// Explain says why a subject is, or is not, on the express way.
func (c *Client) Explain(subject string) (e Explanation, err error) {
	return e, c.get("/v1/explain", url.Values{"subject": {subject}}, &e)
}

// Metrics writes what the daemon counts in Prometheus' text format.
func (c *Client) Metrics(w io.Writer) error {
	req, err := http.NewRequest(http.MethodGet, "http://scon"+MetricsPath, nil)
	if err != nil {
		return fmt.Errorf("ask for metrics: %w", err)
	}
	text, err := c.ask(req)
	if err != nil {
		return err
	}
	defer text.Close()
	if _, err := io.Copy(w, text); err != nil {
		return fmt.Errorf("read the metrics of the daemon at %s: %w", c.socket, err)
	}
	return nil
}

// Flush takes the Conentries of one container, or of all, away.
func (c *Client) Flush(container string) (n int, err error) {
	var f flushed
	err = c.post("/v1/flush", container, &f)
	return f.Flushed, err
}

// Pause makes every packet of one container, or of all, go regular.
func (c *Client) Pause(container string) error {
	return c.post("/v1/pause", container, &struct{}{})
}

// Resume ends a Pause.
func (c *Client) Resume(container string) error {
	return c.post("/v1/resume", container, &struct{}{})
}

// Stop asks the daemon to end; it returns before the daemon has.
func (c *Client) Stop() error {
	return c.post("/v1/stop", "", &struct{}{})
}

func (c *Client) get(path string, q url.Values, answer any) error {
	req, err := http.NewRequest(http.MethodGet, "http://scon"+path+"?"+q.Encode(), nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	return c.do(req, answer)
}

func (c *Client) post(path, container string, answer any) error {
	return c.send(path, change{container}, answer)
}

// send posts a document.
func (c *Client) send(path string, document, answer any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://scon"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	return c.do(req, answer)
}

func (c *Client) do(req *http.Request, answer any) error {
	document, err := c.ask(req)
	if err != nil {
		return err
	}
	defer document.Close()
	if err := json.NewDecoder(document).Decode(answer); err != nil {
		return fmt.Errorf("read the answer of the daemon at %s: %w", c.socket, err)
	}
	return nil
}

// ask returns the body of an answer that is no refusal, for the caller to close.
func (c *Client) ask(req *http.Request) (io.ReadCloser, error) {
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s; start one with 'scon up'", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("not allowed to use %s; run as root, or to read as a member of the group in the config's socket_group", c.socket)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil, fmt.Errorf("the daemon at %s closed the connection: it is about to end, or has too many clients", c.socket)
	case err != nil:
		return nil, fmt.Errorf("ask the daemon at %s: %w", c.socket, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var r refusal
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || r.Error == "" {
		r.Error = fmt.Sprintf("the daemon at %s answered %s to %s", c.socket, resp.Status, req.URL.Path)
	}
	return nil, &Error{Status: resp.StatusCode, Message: r.Error}
}
