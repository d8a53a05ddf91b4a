// Package latency measures the latency of packets through lines of containers,
// packet by packet, at the wire. It reproduces the measurements of the paper
// "Applicability of Hardware-Supported Containers in Low-Latency Networking"
// (sections III and IV), called the paper below.
//
// A packet takes these steps:
//
//  1. A generator in the line's first node sends it according to its schedule.
//  2. tap_in records the time when the first device sends it.
//  3. The kernel forwards it from node to node.
//  4. tap_out records the time when the last forwarding node sends it and the
//     interruptions of the CPU since tap_in, and drops it.
//
// After a run the samples are read from memory shared with the taps. Every packet's
// latency is computed from them and the schedule (sample.go).
package latency

import (
	"time"

	"github.com/scon-project/scon/lab/bench"
)

// FrameBytes is the size of every packet with Ethernet's header and checksum, as in
// the paper (section IV).
const FrameBytes = 64

// Rate of the paper's Fig. 7 and 8 (section IV-B), in packets per second.
const Rate = 17300

// Pin selects the CPUs of the generator, and with it those of the packets, which
// the kernel forwards on the CPU that sends them.
type Pin string

const (
	// PinCore is one CPU, the last.
	PinCore Pin = "core"
	// PinNone is any CPU.
	PinNone Pin = "none"
)

// Metrics of every mode. The first ones are the paper's percentiles in
// microseconds.
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

// warmUp packets are sent before the counted ones, one per millisecond: they
// resolve neighbours, fill caches and let SCON admit the connections.
const warmUp = 100

// settle is the time that packets may need after the last one was sent, in addition
// to the delay of the links.
const settle = 20 * time.Millisecond
