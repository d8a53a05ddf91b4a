package composer

import (
	"maps"
	"math"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/rules"
)

// account is what the composer knows of one container, by its port.
type account struct {
	paused     bool
	candidates limiter
	spare      usage   // by candidates beyond its own rate
	droppable  limiter // checks whether the rules drop a connection
	refused    map[Refusal]uint64
	judged     judged // the latest connection that a rule kept regular
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
	c.setKept(port)
	c.Flush(port)
	if !paused {
		c.table.CountAnew()
	}
}

// setKept has packets without a Conentry at a port counted by what is known of them.
func (c *Composer) setKept(port int) {
	a := c.account(port)
	c.keep(port, datapath.Kept{Paused: a.paused, Judged: a.judged.rule != rules.Rule{} && c.rules.Judges()})
}

// IsPaused reports whether SetPaused has paused the container behind a port.
func (c *Composer) IsPaused(port int) bool {
	a := c.accounts[port]
	return a != nil && a.paused
}

// Refused counts the refused connections of all containers since the start.
func (c *Composer) Refused() map[Refusal]uint64 { return maps.Clone(c.refused) }

// RefusedOf counts the refused connections of the container behind a hooked
// port. rule is the one that keeps the latest of those regular that a rule has kept so,
// if counts has PerPacketRule; until is when it was seen to do so no more, zero if it does.
func (c *Composer) RefusedOf(port int) (counts map[Refusal]uint64, rule rules.Rule, until time.Time) {
	a := c.accounts[port]
	if a == nil {
		return nil, rule, until
	}
	return maps.Clone(a.refused), a.judged.rule, a.judged.until
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
	candidatesPerSecond = 500
	candidatesAtOnce    = 1000
	droppablePerSecond  = 100
	droppableAtOnce     = 200
)

// The loop's time that all candidates together may take, in seconds of a second, unless each
// container keeps to its own rate: a proxy that has the machine for itself opens ten thousand
// connections a second. Beyond its rate, a container may have spareShare times the time that
// is left. So one alone gets eight ninths, those who want more get equal parts, and
// some is left for the next one. A candidate that becomes no Conentry counts as if it took
// longer, so that a flood of these gets little.
const (
	mostTime    = 0.75
	spareShare  = 8
	spareInVain = 10
)

// payers are what the time that a candidate takes counts for; none if it is not looked at.
type payers []*usage

// allow returns who pays for another candidate of a container, or that it has too many.
func (c *Composer) allow(a *account, now time.Time) (payers, Refusal) {
	if a.candidates.allow(now, candidatesPerSecond, candidatesAtOnce) {
		return payers{&c.time}, ""
	}
	if a.spare.lately(now) >= spareShare*(mostTime-c.time.lately(now)) {
		return nil, TooMany
	}
	return payers{&c.time, &a.spare}, ""
}

// spend says how long it took to look at the candidate.
func (p payers) spend(took time.Duration, inVain bool) {
	if inVain && len(p) > 1 {
		took *= spareInVain
	}
	for _, u := range p {
		u.seconds += took.Seconds()
	}
}

// usage is how much of the loop's time was taken, of which a second ago a third counts.
type usage struct {
	seconds float64
	last    time.Time
}

// lately returns the usage in the last second.
func (u *usage) lately(now time.Time) float64 {
	u.seconds *= math.Exp(-now.Sub(u.last).Seconds())
	u.last = now
	return u.seconds
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
