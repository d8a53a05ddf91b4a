package composer

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/rules"
)

// A lease bounds for how long a decision is used that nothing announced to be
// outdated. It is short, Options.Lease, where something may matter that nobody
// announces. Else it is as long as Options.LeaseMax and what regular packets keep
// alive allow: the connection in conntrack, the neighbours, the bridges' tables.

// Limits are what bounds all leases. The loop reads them at intervals.
type Limits struct {
	// Unwatched is what may matter and is not watched, "" for nothing.
	Unwatched string
	// Learnt4 and Learnt6 say how other routers may change the way of packets of IPv4 and IPv6
	// without an announcement, "" if they may not.
	Learnt4, Learnt6 string
	// PathMTU means that path MTUs which this host has learnt count for what it forwards.
	PathMTU bool
	// TCP and UDP are the shortest timeouts that conntrack may give an established
	// connection, Unassured that of one of UDP before it is assured.
	TCP, UDP, Unassured time.Duration
	// Neighbour is how long the kernel keeps a neighbour that no packet uses, Reachable
	// how long it believes one on average, Table how long a bridge keeps a MAC address.
	Neighbour, Reachable, Table time.Duration
	// HidesEnds means that conntrack announces nothing (nf_conntrack_events).
	HidesEnds bool
	// BridgesCall4 and BridgesCall6 mean that all bridges show what they forward to
	// Netfilter (bridge-nf-call-iptables, bridge-nf-call-ip6tables).
	BridgesCall4, BridgesCall6 bool
	// Nexthop is after how long without packets the kernel moves what it sends by a
	// resilient group of next hops, 0 for never.
	Nexthop time.Duration
	// NeighbourChoosesNexthop means that of several next hops the kernel uses those whose
	// neighbour it believes.
	NeighbourChoosesNexthop bool
}

// What bounds leases, as the user reads it.
const (
	BoundBySetting   = "lease_max in the configuration"
	BoundByConntrack = "a third of the connection's timeout in conntrack"
	BoundByNeighbour = "three quarters of the time that the kernel keeps an unused neighbour (gc_stale_time)"
	BoundByReachable = "the longest time that the kernel believes a neighbour (one and a half of base_reachable_time)"
	BoundByNexthop   = "a third of the time without packets after which a resilient group of next hops moves them (idle_timer)"
	BoundByChoice    = "its packets leave by one of several next hops, and the kernel does not announce which of them it may use (fib_multipath_use_neigh)"
	BoundByTable     = "a third of the time that a bridge keeps a MAC address (ageing_time)"
	BoundByRule      = "a rule depends on what changes without an announcement"
	BoundByMarks     = "a rule depends on its mark in conntrack, which is looked at once a second for 1000 connections, of a container half of what others leave"
	BoundByPolicy    = "a rule chose timeouts of connections (ct timeout), which conntrack does not tell"
	BoundByLegacy    = "iptables-legacy has tables, which may change without an announcement"
	BoundByUntracked = "conntrack does not see the connection, and this kernel does not say when it begins to"
	BoundByOverlay   = "its packets skip an overlay device"
	BoundByMST       = "its bridge has spanning trees of VLANs (mst_enabled), and the kernel does not announce the states of ports in them"
	BoundByNoReply   = "no reply has come yet, after which rules may decide otherwise"
	BoundByBeginning = "conntrack has not taken it for a stream of packets yet"
	BoundByPackets   = "lease_packets in the configuration"
	BoundByTCP       = "4096 packets of TCP, by which conntrack follows it"
	boundUntilRead   = "what it depends on is being read"
)

// Deciding about leases again may take againPerSecond seconds of the loop's time in a second,
// and againAtOnce in one piece of a sweep.
const (
	againPerSecond = 0.3
	againAtOnce    = 5 * time.Millisecond
)

// Conntrack takes a UDP connection for a stream when a packet passes streamAfter or later
// after its first answer.
const streamAfter = 2 * time.Second

// leases are what is known of the leases of Conentries.
type leases struct {
	limits   Limits
	reading  uint32    // number of the state by which leases are decided, never 0
	decided  []decided // by Conentry.Number
	bounds   bounds    // that there are
	time     limiter   // of deciding again
	ruleGone bool      // leases that a rule bounds are decided again, from the next sweep on
	byRule   bool      // in this sweep
}

// decided is how the lease of a Conentry was decided.
type decided struct {
	reading uint32 // number of the state by which it was, 0 for none
	bound   uint32 // number of what bounds it
}

// bounds number what bounds leases. Limits have texts of their own, which name devices: they
// are forgotten with the Limits.
type bounds struct {
	texts   []string
	numbers map[string]uint32
}

// newBounds returns those with number 0 alone, that of a lease that is not decided.
func newBounds() bounds {
	return bounds{texts: []string{boundUntilRead}, numbers: map[string]uint32{boundUntilRead: 0}}
}

func newLeases(conentries int) leases {
	return leases{limits: Limits{Unwatched: boundUntilRead}, reading: 1, decided: make([]decided, conentries), bounds: newBounds()}
}

func (b *bounds) number(text string) uint32 {
	n, known := b.numbers[text]
	if !known {
		n = uint32(len(b.texts))
		b.texts, b.numbers[text] = append(b.texts, text), n
	}
	return n
}

// set notes what bounds the lease of a Conentry, by the state of now.
func (l *leases) set(e *contable.Conentry, bound string) {
	l.decided[e.Number()] = decided{l.reading, l.bounds.number(bound)}
}

// forget has the lease of a Conentry decided again.
func (l *leases) forget(e *contable.Conentry) { l.decided[e.Number()] = decided{} }

// bound returns what bounds the lease of a Conentry.
func (l *leases) bound(e *contable.Conentry) string {
	return l.bounds.texts[l.decided[e.Number()].bound]
}

// SetLimits takes up what bounds all leases. Connections that conntrack forgets too soon by
// now lose their Conentries.
func (c *Composer) SetLimits(l Limits) {
	if l == c.leases.limits {
		return
	}
	c.leases.limits = l
	if min(l.TCP, l.UDP, l.Unassured) < 2*c.lease {
		c.table.All(func(e *contable.Conentry) {
			if !e.Untracked && l.timeout(c.table.Conn(e)) < 2*c.lease {
				c.table.Retire(e)
			}
		})
	}
	c.shorten()
}

// shorten makes all leases short until each is decided again.
func (c *Composer) shorten() {
	c.leases.reading++
	c.table.All(c.outdate)
	c.leases.bounds = newBounds()
}

// outdate makes the lease of a Conentry short until it is decided again.
func (c *Composer) outdate(e *contable.Conentry) {
	c.table.SetLease(e, c.lease)
	c.leases.forget(e)
}

// decideLease decides about the lease of a Conentry, of which conntrack has conn.
func (c *Composer) decideLease(e *contable.Conentry, conn conntrack.Conn) {
	lease, bound := c.leaseOf(e, conn)
	c.table.SetLease(e, lease)
	c.leases.set(e, bound)
}

// leaseOf returns the lease of a Conentry, and what bounds it.
func (c *Composer) leaseOf(e *contable.Conentry, conn conntrack.Conn) (lease time.Duration, bound string) {
	lease, bound = c.leaseKept(e, conn)
	if moved, by := c.movedAfter(e); moved < lease {
		return moved, by
	}
	return lease, bound
}

// leaseKept is leaseOf where packets keep their next hop.
func (c *Composer) leaseKept(e *contable.Conentry, conn conntrack.Conn) (lease time.Duration, bound string) {
	if why := c.shortBy(e, conn); why != "" {
		return c.lease, why
	}
	lease, bound = c.leaseMax, BoundBySetting
	limit := func(most time.Duration, by string) {
		if most < lease {
			lease, bound = most, by
		}
	}
	if !e.Untracked {
		limit(min(conn.Timeout, c.leases.limits.timeout(conn))/3, BoundByConntrack)
	}
	limit(c.leases.limits.Neighbour*3/4, BoundByNeighbour)
	limit(c.leases.limits.Reachable*3/2, BoundByReachable)
	limit(c.leases.limits.Table/3, BoundByTable)
	return max(lease, c.lease), bound
}

// movedAfter is the longest lease of a Conentry whose packets the kernel may send by another
// next hop, and why: a third of the time without regular packets after which a resilient
// group moves them; Options.Lease where the states of neighbours choose.
func (c *Composer) movedAfter(e *contable.Conentry) (after time.Duration, bound string) {
	after = time.Duration(math.MaxInt64)
	if !c.leases.limits.NeighbourChoosesNexthop && c.leases.limits.Nexthop == 0 || !c.table.Spread(e) {
		return after, ""
	}
	if c.leases.limits.Nexthop > 0 {
		after, bound = c.leases.limits.Nexthop/3, BoundByNexthop
	}
	if c.leases.limits.NeighbourChoosesNexthop && c.lease < after {
		after, bound = c.lease, BoundByChoice
	}
	return after, bound
}

// timeout is the shortest that conntrack may give a connection.
func (l Limits) timeout(conn conntrack.Conn) time.Duration {
	if conn.Orig.Proto == unix.IPPROTO_TCP {
		return l.TCP
	}
	if !conn.Assured() {
		return min(l.UDP, l.Unassured) // it may become a stream with the next packet
	}
	return l.UDP
}

// shortBy returns why a lease has to be short, "" if it has not.
func (c *Composer) shortBy(e *contable.Conentry, conn conntrack.Conn) string {
	switch {
	case e.Untracked && !c.rules.KnowsTracked():
		return BoundByUntracked
	case c.rules.HasLegacy():
		return BoundByLegacy
	case c.table.Tunneled(e):
		return BoundByOverlay
	case c.hasMST(e.Port()) || c.hasMST(e.Peer()):
		return BoundByMST
	case !e.Untracked && !conn.Replied():
		return BoundByNoReply
	case !e.Untracked && !conn.Assured():
		return BoundByBeginning
	case !e.Untracked && conn.Orig.Proto == protoTCP && c.rules.TimesOut():
		return BoundByPolicy
	}
	switch _, silence := c.SilentRule(e); {
	case silence == rules.FullSilence:
		return BoundByRule
	case silence == rules.MarkSilence && !c.recheck.watchMark(e, c.table.Live):
		return BoundByMarks
	}
	if c.leases.limits.Unwatched != "" {
		return c.leases.limits.Unwatched
	}
	if conn.Orig.Src.Addr().Is4() {
		return c.leases.limits.Learnt4
	}
	return c.leases.limits.Learnt6
}

// hasMST reports whether a port's bridge has MST; 0 is no port.
func (c *Composer) hasMST(port int) bool {
	p := c.ports.Port(port)
	return p != nil && p.Bridge.MST
}

// SilentRule finds a rule that depends on what changes without an announcement, and
// that packets of a Conentry may reach.
func (c *Composer) SilentRule(e *contable.Conentry) (rule rules.Rule, silence rules.Silence) {
	asked, ok := c.ask(subjectOf(e), c.table.Conn(e))
	if !ok {
		return rule, rules.FullSilence
	}
	return c.rules.Silent(asked)
}

// DecideLeases decides again about leases in n places of the table, as contable.Table.Piece
// has them, where something may have changed. It is called once a second for each piece.
func (c *Composer) DecideLeases(from, n uint32, now time.Time) {
	l := &c.leases
	if from == 0 {
		l.byRule, l.ruleGone = l.ruleGone, false
		c.index.tidy(c.table)
	}
	l.time.refill(now, againPerSecond, againPerSecond)
	left := min(againAtOnce, time.Duration(l.time.tokens*float64(time.Second)))
	c.table.Piece(from, n, func(e *contable.Conentry) {
		if c.table.Tunneled(e) && e.Lease() > c.lease {
			c.outdate(e)
		}
		if bound := l.bound(e); l.byRule && (bound == BoundByRule || bound == BoundByMarks) {
			l.forget(e)
		}
		if left <= 0 || !c.isOutdated(e, now) {
			return
		}
		began := time.Now()
		c.decideLeaseAgain(e)
		took := time.Since(began)
		left -= took
		l.time.tokens -= took.Seconds()
	})
}

// decideLeaseAgain asks conntrack about a Conentry and decides about its lease.
func (c *Composer) decideLeaseAgain(e *contable.Conentry) {
	if e.Untracked {
		c.decideLease(e, c.table.Conn(e))
		return
	}
	conn, err := c.ct.Get(c.table.Orig(e))
	if err != nil || !c.table.Same(e, conn) {
		return // the announcement of its end follows
	}
	if e.Status != conn.Status {
		e.Status = conn.Status
		c.index.add(e, conn)
	}
	c.decideLease(e, conn)
}

// isOutdated reports whether the lease of a Conentry has to be decided again.
func (c *Composer) isOutdated(e *contable.Conentry, now time.Time) bool {
	if c.leases.decided[e.Number()].reading != c.leases.reading {
		return true
	}
	switch c.leases.bound(e) {
	case BoundByBeginning: // while its packets matter
		if c.table.Age(e, now) >= streamAfter && c.table.ActiveSince(e, now.Add(-mostSilence)) {
			return true
		}
	case BoundByNoReply:
		if c.table.Answered(e) {
			return true
		}
	case BoundByOverlay:
		if !c.table.Tunneled(e) {
			return true
		}
	}
	moved, _ := c.movedAfter(e)
	return e.Lease() > moved
}

// mostSilence is how long a connection may be silent while conntrack is about to take it
// for a stream.
const mostSilence = 3 * time.Second

// LeaseOf names what bounds the lease of a Conentry, in words.
func (c *Composer) LeaseOf(e *contable.Conentry) string {
	if _, ends := c.table.EndsByPackets(e); !ends {
		return c.leases.bound(e)
	}
	if c.table.LeasePackets(e) == datapath.TCPLeasePackets {
		return BoundByTCP
	}
	return BoundByPackets
}
