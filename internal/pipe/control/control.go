// Package control is the interface between the pipe's broker and the operator's clients.
// Package pipe has the protocol for applications.
package control

import (
	"net/http"

	"github.com/scon-project/scon/internal/api"
)

// Pipe is the broker's state, as `scon pipe ls --json` and `scon pipe stat --json` print it.
type Pipe struct {
	Socket  string   `json:"socket"`  // path of the socket for containers
	Engines []string `json:"engines"` // that this machine supports
	// CopyDevice is the name of the device that copies for the engine copier; "": CPUs
	// copy.
	CopyDevice  string `json:"copy_device"`
	Processes   int    `json:"processes"`    // connected
	MemoryBytes int64  `json:"memory_bytes"` // size of all rings, in bytes
	MemoryLimit int64  `json:"memory_limit"` // `pipe.memory_limit`, in bytes
	// Connections since the broker's start.
	Made        uint64            `json:"made"`
	Grown       uint64            `json:"grown"`       // rings that have grown
	SentBytes   uint64            `json:"sent_bytes"`  // that ends report as sent
	Refused     map[string]uint64 `json:"refused"`     // connections refused, by reason
	Names       []PipeName        `json:"names"`       // those that are bound
	Connections []PipeConnection  `json:"connections"` // those that exist
}

// PipeParty is a process that uses the pipe.
type PipeParty struct {
	PID     int    `json:"pid"`     // of the process
	Command string `json:"command"` // its name
	Netns   uint64 `json:"netns"`   // inode of its network namespace
}

// PipeName is an address and a port that a process has bound.
type PipeName struct {
	Name string `json:"name"` // address and port
	PipeParty
	Engines   []string `json:"engines"`   // accepted for connections
	Listening bool     `json:"listening"` // whether it has called pd_listen
	Waiting   int      `json:"waiting"`   // connections not yet accepted
	Backlog   int      `json:"backlog"`   // most connections that may wait
}

// PipeConnection is one connection.
type PipeConnection struct {
	ID     uint64  `json:"id"`     // number of the connection
	Name   string  `json:"name"`   // that the client connected to
	Engine string  `json:"engine"` // that moves its bytes
	AgeMS  int64   `json:"age_ms"` // time since it was made
	Over   bool    `json:"over"`   // an end has closed, or the connection was reset
	Client PipeEnd `json:"client"` // the end that connected
	Server PipeEnd `json:"server"` // the end that accepted
}

// PipeEnd is one end of a connection.
type PipeEnd struct {
	PipeParty
	Addr      string `json:"addr"`       // address and port
	SentBytes uint64 `json:"sent_bytes"` // by this end
	RingBytes uint64 `json:"ring_bytes"` // size of the ring that it sends to
	Closed    bool   `json:"closed"`     // whether it has closed
}

// Broker is the pipe's broker.
type Broker interface {
	Status() Pipe
}

// Handler returns the HTTP handler of the broker's control socket.
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

// Client queries the broker over its control socket.
type Client struct{ *api.Service }

// Dial returns a client of the broker with that control socket. It does not connect yet.
func Dial(socket string) *Client {
	return &Client{api.Connect(api.Identity{
		Service: "pipe", Name: "pipe broker", Start: "set pipe.enabled in the configuration, then start it with 'scon up'",
	}, socket)}
}

// Pipe returns the broker's state.
func (c *Client) Pipe() (p Pipe, err error) {
	return p, c.Get(pipePath, nil, &p)
}
