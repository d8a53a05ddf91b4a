package latency

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
)

// TapCost is the time that the taps add to a packet, in nanoseconds.
type TapCost struct {
	InNS  float64 `json:"in_ns"`
	OutNS float64 `json:"out_ns"`
}

// costRuns is the number of runs of a program whose mean is taken, costTries the
// number of means whose median is taken.
const (
	costRuns  = 200_000
	costTries = 5
)

// cost runs the taps on a test packet.
func (t *taps) cost() (c TapCost, err error) {
	if err := t.begin(1, 1); err != nil {
		return c, err
	}
	packet := payload(1)
	setNumber(packet, 0)
	for _, p := range []struct {
		program *ebpf.Program
		ns      *float64
	}{{t.objects.SconTapIn, &c.InNS}, {t.objects.SconTapOut, &c.OutNS}} {
		var tries []float64
		for range costTries {
			_, took, err := p.program.Benchmark(frame(packet), costRuns, nil)
			if err != nil {
				return c, fmt.Errorf("measure the taps' own cost: %w", err)
			}
			tries = append(tries, float64(took.Nanoseconds()))
		}
		*p.ns = median(tries)
	}
	return c, nil
}

// frame wraps a payload in Ethernet, IP and UDP headers.
func frame(payload []byte) []byte {
	b := make([]byte, 42, 42+len(payload))
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	b[14], b[22], b[23] = 0x45, ttl, 17
	binary.BigEndian.PutUint16(b[16:], uint16(28+len(payload)))
	binary.BigEndian.PutUint16(b[36:], port)
	binary.BigEndian.PutUint16(b[38:], uint16(8+len(payload)))
	return append(b, payload...)
}
