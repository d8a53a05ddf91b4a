package composer

import (
	"maps"
	"time"

	"github.com/scon-project/scon/internal/express/rules"
)

// account is what the composer knows of one container, by its port.
type account struct {
	paused     bool
	candidates limiter
	droppable  limiter // checks whether the rules drop a connection
	refused    map[Refusal]uint64
	rule       rules.Rule // the latest that kept a connection regular
}

// account returns that of a hooked port.
func (c *Composer) account(port int) *account {
	a := c.accounts[port]
	if a == nil {
		a = &account{refused: make(map[Refusal]uint64)}
		c.accounts[port] = a
	}
	return a
}

// refuse counts that a connection of a container stays regular.
func (c *Composer) refuse(port int, why Refusal) {
	c.refused[why]++
	if c.ports.Port(port) != nil {
		c.account(port).refused[why]++
	}
}

// SetPaused stops composing for the container behind a hooked port and removes
// its Conentries, or allows composing again.
func (c *Composer) SetPaused(port int, paused bool) {
	c.account(port).paused = paused
	c.Flush(port)
}

// IsPaused reports whether SetPaused has paused the container behind a port.
func (c *Composer) IsPaused(port int) bool {
	a := c.accounts[port]
	return a != nil && a.paused
}

// Refused counts the refused connections of all containers since the start.
func (c *Composer) Refused() map[Refusal]uint64 { return maps.Clone(c.refused) }

// RefusedOf counts the refused connections of the container behind a hooked
// port. rule is the latest that kept one regular, if Refused has PerPacketRule.
func (c *Composer) RefusedOf(port int) (counts map[Refusal]uint64, rule rules.Rule) {
	a := c.accounts[port]
	if a == nil {
		return nil, rule
	}
	return maps.Clone(a.refused), a.rule
}

// limiter is a token bucket. It bounds how much of the loop's time one container
// can take, so that a flood from one does not keep the loop from the others.
type limiter struct {
	tokens float64
	last   time.Time
}

// Rates and bursts of a container's candidates, and of its connections for which
// the rules are asked whether they drop them, which takes ten times as long.
const (
	candidatesPerSecond = 2000
	candidatesAtOnce    = 4000
	droppablePerSecond  = 100
	droppableAtOnce     = 200
)

// What all containers together may ask for beyond that, in seconds of the loop's time: a
// proxy that has the machine for itself opens ten thousand connections a second. A
// candidate that becomes no Conentry counts as if it took longer, so that a flood of these
// gets little.
const (
	sparePerSecond = 0.6
	spareAtOnce    = 0.6
	spareInVain    = 10
)

// allow reports whether a container may have another candidate looked at.
func (c *Composer) allow(a *account, now time.Time) bool {
	if a.candidates.allow(now, candidatesPerSecond, candidatesAtOnce) {
		return true
	}
	c.spare.refill(now, sparePerSecond, spareAtOnce)
	c.sparing = c.spare.tokens > 0
	return c.sparing
}

// spend says how long it took to look at the latest candidate that was allowed.
func (c *Composer) spend(took time.Duration, inVain bool) {
	if !c.sparing {
		return
	}
	if inVain {
		took *= spareInVain
	}
	c.spare.tokens -= took.Seconds()
}

func (l *limiter) refill(now time.Time, perSecond, burst float64) {
	if l.last.IsZero() {
		l.tokens = burst
	}
	l.tokens = min(l.tokens+now.Sub(l.last).Seconds()*perSecond, burst)
	l.last = now
}

func (l *limiter) allow(now time.Time, perSecond, burst float64) bool {
	l.refill(now, perSecond, burst)
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
