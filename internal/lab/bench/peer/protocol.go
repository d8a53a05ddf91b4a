// Package peer is the bench's traffic generator: two processes, each in the
// namespace of a lab node, that exchange messages over blocking sockets with
// one system call per message.
//
// The way of one run:
//
//  1. Start puts a peer process into a namespace; it reads orders from its
//     standard input and ends when that closes.
//  2. Run orders one peer to serve and gets the port that it listens on.
//  3. Run orders the other peer to drive: it connects, warms up at a gentle
//     pace so that the connection can become known to an accelerator, and
//     sends the counted messages.
//  4. The driver ends the connection, and both report what they counted.
//
// Every run works on one thread pinned to one CPU, and calls the kernel
// directly: Go's net package would put its poller between message and socket.
package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Pattern is the order in which messages flow.
type Pattern string

const (
	// Stream sends as many messages as possible one way for Spec.Duration;
	// the server counts them.
	Stream Pattern = "stream"
	// RequestResponse sends one request, waits for the response, and so on
	// for Spec.Duration; the driver takes every round trip's time.
	RequestResponse Pattern = "rr"
	// Connections opens Spec.Count TCP connections one after the other, each
	// with one request and one response.
	Connections Pattern = "connections"
	// Flows sends Spec.Count flows of changing size over one TCP connection,
	// one after the other; the driver takes the time until the server has
	// confirmed each.
	Flows Pattern = "flows"
)

// Spec says what two peers do together.
type Spec struct {
	Pattern Pattern `json:"pattern"`
	// Proto is "tcp" or "udp".
	Proto string `json:"proto"`
	// Size of every message in bytes, at least 1.
	Size int `json:"size"`
	// Sizes of Flows in bytes, in turn.
	Sizes []int `json:"sizes,omitempty"`
	// Duration of the counted part of Stream and RequestResponse.
	Duration time.Duration `json:"duration"`
	// Count of Connections or Flows.
	Count int `json:"count"`
	// WarmUp messages, or connections, go ahead of the counted ones, one
	// each millisecond.
	WarmUp int `json:"warm_up"`
	// Address of the server; Run fills in the port.
	Address netip.AddrPort `json:"address"`
	// Reach is the address that the driver reaches it by, if it is another.
	Reach netip.Addr `json:"reach"`
	// ServerCPU and DriverCPU are where the two ends run.
	ServerCPU int `json:"server_cpu"`
	DriverCPU int `json:"driver_cpu"`
}

// reachAt is where the driver reaches a server that listens on a port.
func (s Spec) reachAt(port uint16) netip.AddrPort {
	if s.Reach.IsValid() {
		return netip.AddrPortFrom(s.Reach, port)
	}
	return netip.AddrPortFrom(s.Address.Addr(), port)
}

// Report is what one end counted.
type Report struct {
	// Messages between the first and the last reading of the clock; at the
	// driver those sent or answered, at the server those received.
	Messages uint64 `json:"messages"`
	// Elapsed is the time in which the Messages passed.
	Elapsed time.Duration `json:"elapsed"`
	// Total of all counted messages, the tail after the last reading of the
	// clock included.
	Total uint64 `json:"total"`
	// CPU is the processor time of the end's thread during Elapsed, the
	// softirqs that ran on top of it included.
	CPU time.Duration `json:"cpu"`
	// P50, P99, P999 and Max of the round trips, or of whole connections.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// PerSecond is the rate of messages.
func (r Report) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Messages) / r.Elapsed.Seconds()
}

// role is the end that an order is for.
type role string

const (
	serve role = "serve"
	drive role = "drive"
)

// order is one line to a peer process.
type order struct {
	Role role `json:"role"`
	Spec Spec `json:"spec"`
}

// answer is one line from a peer process. A server answers twice: with its port
// when it listens, with its report at the end.
type answer struct {
	Port   uint16  `json:"port,omitempty"`
	Report *Report `json:"report,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// check refuses a spec that no peer could run.
func (s Spec) check() error {
	switch {
	case s.Proto != "tcp" && s.Proto != "udp":
		return fmt.Errorf("protocol %q: want tcp or udp", s.Proto)
	case s.Size < 1:
		return fmt.Errorf("message size %d: want at least 1 byte", s.Size)
	case !s.Address.IsValid():
		return errors.New("no server address")
	}
	switch s.Pattern {
	case Stream, RequestResponse:
		if s.Duration <= 0 {
			return errors.New("duration: want more than 0")
		}
	case Connections:
		if s.Proto != "tcp" || s.Count < 1 {
			return errors.New("connections: want tcp and a count of at least 1")
		}
	case Flows:
		if s.Proto != "tcp" || s.Count < 1 || len(s.Sizes) == 0 || slices.Min(s.Sizes) < 1 {
			return errors.New("flows: want tcp, a count of at least 1 and sizes of at least 1 byte")
		}
	default:
		return fmt.Errorf("pattern %q is unknown", s.Pattern)
	}
	return nil
}
