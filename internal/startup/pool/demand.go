package pool

import "time"

// demand remembers how containers arrive. What is expected is what came within
// one window at its worst since the last cooldown: a node that starts forty at
// once every half a minute has forty ready, one that is quiet has the warm
// target.
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

// expect takes a burst of n for possible.
func (d *demand) expect(now time.Time, n int) {
	if n >= d.expected(now) {
		d.peak, d.peakedAt = n, now
	}
}

// expected is the largest burst to be ready for.
func (d *demand) expected(now time.Time) int {
	if now.Sub(d.peakedAt) > d.cooldown {
		d.peak = 0
	}
	return d.peak
}

// since is how long nobody has come.
func (d *demand) since(now time.Time) time.Duration { return now.Sub(d.last) }
