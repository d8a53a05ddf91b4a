package latency

import (
	"math"
	"slices"
)

// sample holds the taps' record of a packet.
type sample = tapsSample

// Packet is a packet that has arrived.
type Packet struct {
	Number uint32
	// DueNS, InNS and OutNS are the times when the packet was due and passed the
	// taps, by CLOCK_MONOTONIC.
	DueNS, InNS, OutNS int64
	// LatencyNS is the time between the taps plus the time of waiting for earlier
	// packets; see evaluate.
	LatencyNS int64
	// Causes of the packet's delay, or of the packet that it waited for.
	Causes Causes
}

// WireNS returns the time between the taps.
func (p Packet) WireNS() int64 { return p.OutNS - p.InNS }

// Samples holds the outcome of a run's packets.
type Samples struct {
	Schedule Schedule
	Packets  []Packet // packets that arrived, by number
	// Lost packets passed the first tap but not the last; Untapped packets were
	// sent but never passed the first.
	Lost, Untapped, Skipped uint32
	// Overtaken counts packets that one with a higher number overtook.
	Overtaken uint32
}

// evaluate computes the latencies of a run.
//
// A packet's latency is its time between the taps plus the time it would have
// waited for earlier packets if all had arrived on schedule: a queue in front of
// the line, which takes one packet at a time. A delayed packet therefore also
// delays the packets that become due meanwhile, as in an open network, although the
// generator was blocked as well. Delays of the generator itself do not count. A
// line that accepts packets while others are in flight needs no queue.
func evaluate(s Schedule, g sent, raw []sample, softirqd map[uint32]bool) Samples {
	r := Samples{Schedule: s, Skipped: g.Skipped}
	var free, lastOut int64 = math.MinInt64, math.MinInt64
	var tapped uint32
	for i, x := range raw {
		if x.InNs == 0 {
			continue
		}
		tapped++
		if x.OutNs == 0 {
			r.Lost++
			continue
		}
		in, out, due := int64(x.InNs), int64(x.OutNs), s.Due(uint32(i))
		begin, causes := due, causesOf(x, softirqd)
		switch {
		case in >= lastOut && free > due:
			begin = free
			causes |= r.Packets[len(r.Packets)-1].Causes
		case out < lastOut:
			r.Overtaken++
		}
		free, lastOut = begin+out-in, max(lastOut, out)
		r.Packets = append(r.Packets, Packet{
			Number: uint32(i), DueNS: due, InNS: in, OutNS: out,
			LatencyNS: free - due, Causes: causes,
		})
	}
	r.Untapped = g.Sent - min(tapped, g.Sent)
	return r
}

// quantile returns the smallest value that at least a share p of the sorted values
// do not exceed; NaN without values.
func quantile(sorted []int64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return float64(sorted[max(rank, 1)-1])
}

// sorted returns the sorted values of the packets.
func (s Samples) sorted(value func(Packet) int64) []int64 {
	values := make([]int64, len(s.Packets))
	for i, p := range s.Packets {
		values[i] = value(p)
	}
	slices.Sort(values)
	return values
}

func latencyNS(p Packet) int64 { return p.LatencyNS }

// values returns the metrics. Without arrived packets, those of latencies are
// missing.
func (s Samples) values() map[string]float64 {
	v := map[string]float64{
		"lost":     float64(s.Lost),
		"skipped":  float64(s.Skipped),
		"rate_pps": s.Schedule.Rate,
	}
	if len(s.Packets) == 0 {
		return v
	}
	latency, wire := s.sorted(latencyNS), s.sorted(Packet.WireNS)
	us := func(ns float64) float64 { return math.Round(ns) / 1000 }
	v["p50_us"], v["p99_us"] = us(quantile(latency, 0.5)), us(quantile(latency, 0.99))
	v["p999_us"], v["max_us"] = us(quantile(latency, 0.999)), us(quantile(latency, 1))
	v["wire_p50_us"], v["wire_p999_us"] = us(quantile(wire, 0.5)), us(quantile(wire, 0.999))
	return v
}

// loss is the share of the packets that were due and did not arrive.
func (s Samples) loss() float64 {
	if s.Schedule.Packets == 0 {
		return 0
	}
	return 1 - float64(len(s.Packets))/float64(s.Schedule.Packets)
}

// worst returns the n packets with the highest latencies, by number.
func (s Samples) worst(n int) []Packet {
	packets := slices.Clone(s.Packets)
	slices.SortStableFunc(packets, func(a, b Packet) int {
		switch {
		case a.LatencyNS > b.LatencyNS:
			return -1
		case a.LatencyNS < b.LatencyNS:
			return 1
		}
		return 0
	})
	packets = packets[:min(n, len(packets))]
	slices.SortFunc(packets, func(a, b Packet) int { return int(int64(a.Number) - int64(b.Number)) })
	return packets
}
