package service

import (
	"sync/atomic"
	"time"
)

const (
	// PulseInterval is how often a watched loop beats while it has nothing to do.
	PulseInterval = 10 * time.Second
	// pulseLimit is how long a round of a loop may take. A plugin or iptables, for which
	// loops wait, may take 30 seconds.
	pulseLimit = 2 * time.Minute
)

// began is the start of the time that pulses count, on the monotonic clock.
var began = time.Now()

// Pulse shows that a loop works: the loop calls Beat in each round, and Watchdog.Probe
// checks when it did so last.
type Pulse struct {
	last atomic.Int64 // nanoseconds since began
}

// NewPulse returns the pulse of a loop that starts now.
func NewPulse() *Pulse {
	p := new(Pulse)
	p.Beat()
	return p
}

// Beat records that the loop works.
func (p *Pulse) Beat() { p.last.Store(int64(time.Since(began))) }

// Since returns the time since the last Beat.
func (p *Pulse) Since() time.Duration { return time.Since(began) - time.Duration(p.last.Load()) }

// silent reports whether the loop has not beaten within pulseLimit.
func (p *Pulse) silent() bool {
	return p.Since() > pulseLimit
}
