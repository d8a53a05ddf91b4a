// Package control is the contract between the pipe's broker and the operator's
// clients. The one with applications is package pipe's.
package control

import (
	"net/http"

	"github.com/scon-project/scon/internal/api"
)

// Pipe is what `scon pipe ls --json` and `scon pipe stat --json` print.
type Pipe struct {
	Socket  string   `json:"socket"`  // that containers connect to
	Engines []string `json:"engines"` // that work here
	// CopyDevice copies for the engine copier; "" when processors do.
	CopyDevice string `json:"copy_device"`
	Processes  int    `json:"processes"`
	// MemoryBytes are in rings, MemoryLimit may be.
	MemoryBytes int64 `json:"memory_bytes"`
	MemoryLimit int64 `json:"memory_limit"`
	// Made counts connections, Grown rings that grew, SentBytes what ends say to
	// have sent, Refused connections by reason; all since the broker's start.
	Made        uint64            `json:"made"`
	Grown       uint64            `json:"grown"`
	SentBytes   uint64            `json:"sent_bytes"`
	Refused     map[string]uint64 `json:"refused"`
	Names       []PipeName        `json:"names"`
	Connections []PipeConnection  `json:"connections"`
}

// PipeParty is a process that uses the pipe.
type PipeParty struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Netns   uint64 `json:"netns"` // inode of its network namespace
}

// PipeName is an address and a port that somebody listens on, or will.
type PipeName struct {
	Name string `json:"name"`
	PipeParty
	Engines   []string `json:"engines"` // accepted there
	Listening bool     `json:"listening"`
	Waiting   int      `json:"waiting"` // connections to accept
	Backlog   int      `json:"backlog"`
}

// PipeConnection is one connection.
type PipeConnection struct {
	ID     uint64  `json:"id"`
	Name   string  `json:"name"` // that the client asked for
	Engine string  `json:"engine"`
	AgeMS  int64   `json:"age_ms"`
	Over   bool    `json:"over"` // one end has closed or died
	Client PipeEnd `json:"client"`
	Server PipeEnd `json:"server"`
}

// PipeEnd is one end of a connection.
type PipeEnd struct {
	PipeParty
	Addr      string `json:"addr"`
	SentBytes uint64 `json:"sent_bytes"`
	RingBytes uint64 `json:"ring_bytes"` // of the ring that it sends to
	Closed    bool   `json:"closed"`
}

// Broker carries bulk data between containers.
type Broker interface {
	Status() Pipe
}

// Handler is the broker's server without its socket.
//
//	GET  /v1/status  api.Process
//	GET  /v1/pipe    Pipe
func Handler(c api.Control, p api.Process, b Broker) http.Handler {
	m := api.NewMux(c)
	m.Get(api.StatusPath, "", func(*http.Request, string) (any, error) { return p, nil })
	m.Get(pipePath, "", func(*http.Request, string) (any, error) { return b.Status(), nil })
	return m
}

const pipePath = "/v1/pipe"

// Client asks the broker over its socket.
type Client struct{ *api.Service }

// Dial makes a client of the broker at the unix socket.
func Dial(socket string) *Client {
	return &Client{api.Connect(api.Identity{
		Name: "pipe broker", Start: "set pipe.enabled in the configuration, then start it with 'scon up'",
	}, socket)}
}

// Pipe is the state of the broker.
func (c *Client) Pipe() (p Pipe, err error) {
	return p, c.Get(pipePath, nil, &p)
}
