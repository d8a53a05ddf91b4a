package latency

import (
	"encoding/binary"
	"fmt"
	"time"
)

// backlog is the number of packets that the generator may be behind its schedule,
// like the ring of a network card. Packets that are further behind are never sent.
const backlog = 1000

// Schedule says when the packets of a run are due.
type Schedule struct {
	// Start is the time when the first packet is due, by CLOCK_MONOTONIC in ns.
	Start int64 `json:"start"`
	// Rate in packets per second.
	Rate float64 `json:"rate"`
	// Packets is the number of packets.
	Packets uint32 `json:"packets"`
}

// newSchedule returns the schedule of a rate for a duration.
func newSchedule(rate float64, d time.Duration) Schedule {
	return Schedule{Rate: rate, Packets: uint32(rate * d.Seconds())}
}

// Due returns the time when a packet is due, by CLOCK_MONOTONIC in ns.
func (s Schedule) Due(number uint32) int64 {
	return s.Start + int64(float64(number)*1e9/s.Rate)
}

// sent counts the generator's packets.
type sent struct {
	Sent    uint32 `json:"sent"`
	Skipped uint32 `json:"skipped"` // never sent: more than backlog behind
	// Behind is the longest delay of a packet behind its due time, in ns.
	Behind int64 `json:"behind"`
}

// run sends the packets when they are due, and late packets at once: a packet that
// waits for another does not delay the schedule. now reads the clock.
func (s Schedule) run(now func() int64, send func(number uint32) error) (r sent, err error) {
	most := int64(backlog * 1e9 / s.Rate)
	for number := range s.Packets {
		due := s.Due(number)
		at := now()
		for at < due {
			at = now()
		}
		if at-due > most {
			r.Skipped++
			continue
		}
		r.Behind = max(r.Behind, at-due)
		if err := send(number); err != nil {
			return r, fmt.Errorf("send packet %d: %w", number, err)
		}
		r.Sent++
	}
	return r, nil
}

// mark begins the payload of every packet: "scon tap".
const mark = 0x73636f6e20746170

// payloadBytes fill a frame of FrameBytes: behind Ethernet's, IP's and UDP's
// headers and before the check sum of four bytes.
const payloadBytes = FrameBytes - 4 - 14 - 20 - 8

// payload returns the payload of a run's packets.
func payload(run uint32) []byte {
	b := make([]byte, payloadBytes)
	binary.BigEndian.PutUint64(b, mark)
	binary.BigEndian.PutUint32(b[8:], run)
	return b
}

// setNumber sets a packet's number in a payload.
func setNumber(payload []byte, number uint32) {
	binary.BigEndian.PutUint32(payload[12:], number)
}
