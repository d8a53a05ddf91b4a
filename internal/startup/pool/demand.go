package pool

import "time"

// demand predicts arrivals: the expected burst is the largest number of arrivals within
// one window since the last cooldown. A node that starts forty containers every half
// minute keeps forty namespaces ready, a quiet one the warm target.
type demand struct {
	cooldown time.Duration
	arrived  []time.Time // within the last window
	peak     int
	peakedAt time.Time
	last     time.Time
}

// arrive counts a container.
func (d *demand) arrive(now time.Time) {
	for len(d.arrived) > 0 && now.Sub(d.arrived[0]) > window {
		d.arrived = d.arrived[1:]
	}
	d.arrived = append(d.arrived, now)
	d.last = now
	d.expect(now, len(d.arrived))
}

// expect records a possible burst of n.
func (d *demand) expect(now time.Time, n int) {
	if n >= d.expected(now) {
		d.peak, d.peakedAt = n, now
	}
}

// expected returns the largest burst to prepare for.
func (d *demand) expected(now time.Time) int {
	if now.Sub(d.peakedAt) > d.cooldown {
		d.peak = 0
	}
	return d.peak
}

// since returns the time since the last arrival.
func (d *demand) since(now time.Time) time.Duration { return now.Sub(d.last) }
