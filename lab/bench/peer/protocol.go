// Package peer is the bench's traffic generator: two processes, each in the
// namespace of a lab node, that exchange messages over blocking sockets with one
// system call per message.
//
// A run has these steps:
//
//  1. Start starts a peer process in a namespace. It reads orders from its
//     standard input and exits when that is closed.
//  2. Run orders one peer to serve and receives the port that it listens on.
//  3. Run orders the other peer to drive: it connects, warms up at a low rate
//     so that an accelerator can learn the connection, and sends the counted
//     messages.
//  4. The driver ends the connection, and both report their counts.
//
// Each run uses one thread pinned to one CPU and raw system calls: Go's net package
// would put its poller between message and socket.
package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Pattern is the order in which messages are exchanged.
type Pattern string

const (
	// Stream sends as many messages as possible in one direction for Spec.Duration;
	// the server counts them.
	Stream Pattern = "stream"
	// RequestResponse repeats one request and its response for Spec.Duration; the
	// driver measures each round trip.
	RequestResponse Pattern = "rr"
	// Connections opens Spec.Count TCP connections one after the other, each with
	// one request and one response.
	Connections Pattern = "connections"
	// Storm sends Spec.Count frames into the network of Spec.Address, each to an address of
	// its own that nobody has. Only Flood does.
	Storm Pattern = "storm"
	// Flows sends Spec.Count flows of several sizes over one TCP connection, one
	// after the other; the driver measures the time until the server has confirmed
	// each.
	Flows Pattern = "flows"
)

// Spec describes a run of two peers.
type Spec struct {
	Pattern Pattern `json:"pattern"`
	// Proto is "tcp" or "udp".
	Proto string `json:"proto"`
	// Size of every message in bytes, at least 1.
	Size int `json:"size"`
	// Sizes of Flows in bytes, used cyclically.
	Sizes []int `json:"sizes,omitempty"`
	// Duration of the counted time of Stream and RequestResponse.
	Duration time.Duration `json:"duration"`
	// Count of Connections or Flows.
	Count int `json:"count"`
	// WarmUp is the number of messages, or connections, before the counted ones,
	// one per millisecond.
	WarmUp int `json:"warm_up"`
	// Address of the server; Run sets the port.
	Address netip.AddrPort `json:"address"`
	// Reach is the address that the driver connects to, if it differs from Address.
	Reach netip.Addr `json:"reach"`
	// ServerCPU and DriverCPU are the CPUs of the two ends.
	ServerCPU int `json:"server_cpu"`
	DriverCPU int `json:"driver_cpu"`
}

// reachAt returns the address and port that the driver connects to.
func (s Spec) reachAt(port uint16) netip.AddrPort {
	if s.Reach.IsValid() {
		return netip.AddrPortFrom(s.Reach, port)
	}
	return netip.AddrPortFrom(s.Address.Addr(), port)
}

// Report is the count of one end.
type Report struct {
	// Messages between the first and the last reading of the clock: at the driver
	// those sent or answered, at the server those received.
	Messages uint64 `json:"messages"`
	// Elapsed is the time in which Messages passed.
	Elapsed time.Duration `json:"elapsed"`
	// Total counts all messages, including those after the last reading of the
	// clock.
	Total uint64 `json:"total"`
	// CPU is the processor time of the end's thread during Elapsed, including
	// softirqs that interrupted it.
	CPU time.Duration `json:"cpu"`
	// P50, P99, P999 and Max of the round trips or connections.
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// PerSecond returns the rate of messages.
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
// when it listens, and with its report at the end.
type answer struct {
	Port   uint16  `json:"port,omitempty"`
	Report *Report `json:"report,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// check returns an error if the spec is invalid.
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
