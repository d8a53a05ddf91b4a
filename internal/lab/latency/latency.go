// Package latency measures how long packets take through lines of containers,
// packet by packet, at the wire.
//
// The way of a packet:
//
//  1. A generator in the line's first node sends it when its schedule says so.
//  2. tap_in notes the time when the first device sends it.
//  3. The kernel forwards it from node to node.
//  4. tap_out notes the time when the last forwarding node sends it, and what
//     has interrupted the CPU meanwhile; there it ends.
//
// After a run the samples are read from memory shared with the taps, and every
// packet's latency is computed from them and the schedule (sample.go).
package latency

import (
	"time"

	"github.com/scon-project/scon/internal/lab/bench"
)

// FrameBytes is the size of every packet with Ethernet's header and check sum,
// as in the paper.
const FrameBytes = 64

// Rate of the paper's Fig. 7 and 8, in packets per second.
const Rate = 17300

// Pin says where the generator may run, and with it the packets, which the
// kernel forwards on the CPU that sends them.
type Pin string

const (
	// PinCore is one CPU, the last.
	PinCore Pin = "core"
	// PinNone is any CPU.
	PinNone Pin = "none"
)

// Metrics of every mode, the paper's percentiles in microseconds first.
var Metrics = []bench.Metric{
	{Name: "p50_us", Unit: "us"},
	{Name: "p99_us", Unit: "us"},
	{Name: "p999_us", Unit: "us"},
	{Name: "max_us", Unit: "us"},
	{Name: "lost", Unit: "packets"},
	{Name: "skipped", Unit: "packets"},
	{Name: "wire_p50_us", Unit: "us"},
	{Name: "wire_p999_us", Unit: "us"},
	{Name: "rate_pps", Unit: "packets/s"},
}

// warmUp packets go ahead of those that count, one each millisecond: neighbours
// are found, caches filled, and connections become known.
const warmUp = 100

// settle is how long packets may be on their way after the last was sent, beside
// what links delay them.
const settle = 20 * time.Millisecond
