package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// The interface of express: `scon daemon` and its clients.

// Reader is what the live page asks express for beside the feed.
type Reader interface {
	// Explain explains a subject that ParseSubject accepts.
	Explain(subject string) (Explanation, error)

	// History returns the points that end after a time, of a container or of the machine.
	History(container string, since time.Time) (History, error)
}

// Backend is the service express. A container is given by name or ID; "" means all. An
// unknown container is refused with *UnknownContainerError.
type Backend interface {
	Control
	Reader
	Status() (Status, error)
	Flows(container string) ([]Flow, error)

	// Flush removes Conentries and returns their number.
	Flush(container string) (int, error)

	Pause(container string) error
	Resume(container string) error

	// Web returns where the daemon serves the live page.
	Web() (Web, error)
}

// Handler is the HTTP handler of express, for clients that may change state.
//
//	GET  /v1/status                      Status
//	GET  /v1/flows?container=C           [Flow]
//	GET  /v1/explain?subject=S           Explanation
//	GET  /v1/history?container=C&since=T  History; T in the form of RFC 3339
//	GET  /v1/web                         Web; 404 if the daemon serves no page
//	GET  /v1/live?...                    live.Feed
//	POST /v1/flush   {"container": "C"}  {"flushed": N}
//	POST /v1/pause   {"container": "C"}  {}
//	POST /v1/resume  {"container": "C"}  {}
func Handler(b Backend, live http.Handler) http.Handler {
	m := NewMux(b)
	changes := func(path string, answer func(container string) (any, error)) {
		Post(m, path, func(_ *http.Request, c change) (any, error) { return answer(c.Container) })
	}
	m.Get(StatusPath, "", func(*http.Request, string) (any, error) {
		s, err := b.Status()
		return s.whole(), err
	})
	m.Get("/v1/flows", "container", func(_ *http.Request, c string) (any, error) {
		flows, err := b.Flows(c)
		return flowList(list(flows)), err
	})
	m.Get("/v1/explain", "subject", func(_ *http.Request, s string) (any, error) {
		if _, err := ParseSubject(s); err != nil {
			return nil, err
		}
		e, err := b.Explain(s)
		return e.whole(), err
	})
	m.Handle(HistoryPath, method{http.MethodGet, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		q, err := query(r, "container", "since")
		if err != nil {
			return nil, err
		}
		return HistoryFor(b, q)
	}})
	m.Handle(livePath, live)
	m.Get(webPath, "", func(*http.Request, string) (any, error) { return b.Web() })
	changes("/v1/flush", func(c string) (any, error) {
		n, err := b.Flush(c)
		return flushed{n}, err
	})
	changes("/v1/pause", func(c string) (any, error) { return struct{}{}, b.Pause(c) })
	changes("/v1/resume", func(c string) (any, error) { return struct{}{}, b.Resume(c) })
	return m
}

const (
	webPath  = "/v1/web"
	livePath = "/v1/live"
)

// Web is where the daemon serves the live page.
type Web struct {
	// Address is the page's with its token, http://HOST:PORT/#token=..., or the path of
	// a unix socket.
	Address string `json:"address"`
}

// ErrNoWeb is the error of Web where the daemon serves no page.
var ErrNoWeb = &Error{http.StatusNotFound, "the daemon serves no page: web is not set in scon.yaml"}

// flushed is the answer to a flush request.
type flushed struct {
	Flushed int `json:"flushed"`
}

// change is the body of a request that changes state.
type change struct {
	Container string `json:"container,omitempty"`
}

var _ Backend = (*Client)(nil)

// Client is a client of express. It implements Backend.
type Client struct{ *Service }

// Dial returns a client of express at the unix socket.
func Dial(socket string) *Client {
	return &Client{Connect(Identity{Service: "scon", Name: "daemon", Start: "start one with 'scon up'"}, socket)}
}

// Status returns the daemon's state.
func (c *Client) Status() (s Status, err error) {
	return s, c.Get(StatusPath, nil, &s)
}

// Flows returns the Conentries of one container, or of all.
func (c *Client) Flows(container string) (f []Flow, err error) {
	return f, c.Get("/v1/flows", url.Values{"container": {container}}, &f)
}

// Explain explains why a subject uses, or does not use, the express path.
func (c *Client) Explain(subject string) (e Explanation, err error) {
	return e, c.Get("/v1/explain", url.Values{"subject": {subject}}, &e)
}

// Web returns where the daemon serves the live page.
func (c *Client) Web() (w Web, err error) { return w, c.Get(webPath, nil, &w) }

// Live returns a stream of events for the live page, which lasts until ctx or the daemon
// ends. The caller closes it.
func (c *Client) Live(ctx context.Context, q url.Values) (io.ReadCloser, error) {
	return c.Stream(ctx, livePath+"?"+q.Encode())
}

// Flush removes the Conentries of one container, or of all.
func (c *Client) Flush(container string) (n int, err error) {
	var f flushed
	err = c.Post("/v1/flush", change{container}, &f)
	return f.Flushed, err
}

// Pause disables the express path for one container, or for all.
func (c *Client) Pause(container string) error {
	return c.Post("/v1/pause", change{container}, &struct{}{})
}

// Resume ends a pause.
func (c *Client) Resume(container string) error {
	return c.Post("/v1/resume", change{container}, &struct{}{})
}
