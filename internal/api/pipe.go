package api

import "net/http"

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
	// have sent, Refused connections by reason; all since the daemon's start.
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

// Piper is a Backend with a broker.
type Piper interface {
	Pipe() (Pipe, error)
}

// handlePipe adds the broker's route.
//
//	GET  /v1/pipe    Pipe
func handlePipe(mux *http.ServeMux, p Piper) {
	mux.Handle("/v1/pipe", method{http.MethodGet, func(_ http.ResponseWriter, r *http.Request) (any, error) {
		if _, err := query(r, ""); err != nil {
			return nil, err
		}
		return p.Pipe()
	}})
}

// Pipe is the state of the broker.
func (c *Client) Pipe() (p Pipe, err error) {
	return p, c.get("/v1/pipe", nil, &p)
}
