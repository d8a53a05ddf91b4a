package contable

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// SetLease sets how long a decision about a Conentry's packets is used. It holds for leases
// that run, too: a shorter one may end at once. A longer one does not bring back a decision
// whose lease has ended, or is about to.
func (t *Table) SetLease(e *Conentry, lease time.Duration) {
	for _, slot := range [2]uint32{e.outbound, e.inbound} {
		h := t.half(slot)
		if lease > e.Lease() && !t.isFresh(h, e.Lease()) {
			atomic.StoreUint32(&h.Generation, 0)
		}
		atomic.StoreUint32(&h.Lease, t.ticks(lease))
	}
	e.lease = millisOf(lease)
}

// stale is more than the time between two heartbeats, by which decisions are dated.
const stale = 500 * time.Millisecond

// isFresh reports whether the lease of a half certainly runs.
func (t *Table) isFresh(h *datapath.Half, lease time.Duration) bool {
	age := t.jiffies() - atomic.LoadUint32(&h.LeaseFrom)
	return time.Duration(age)*t.opts.Tick+stale < lease
}

// jiffies returns the time of the latest heartbeat, low 32 bits, as halves have times.
func (t *Table) jiffies() uint32 { return uint32(atomic.LoadUint64(&t.settings.Heartbeat)) }

// ticks returns a time in jiffies, at least one.
func (t *Table) ticks(d time.Duration) uint32 { return uint32(max(d/t.opts.Tick, 1)) }

// Answered reports whether a packet of the reply direction has been seen.
func (t *Table) Answered(e *Conentry) bool {
	h := t.half(e.slots()[1])
	return h.Probe != 0 || h.OutDev != 0
}

// Tunneled reports whether packets of a Conentry may skip a tunnel's device.
func (t *Table) Tunneled(e *Conentry) bool { return t.flagged(e, datapath.DevTunnel) }

// Spread reports whether packets of a Conentry leave by one of several next hops.
func (t *Table) Spread(e *Conentry) bool { return t.flagged(e, datapath.DevSpread) }

func (t *Table) flagged(e *Conentry, flag uint8) bool {
	return (t.half(e.outbound).Flags|t.half(e.inbound).Flags)&flag != 0
}

// Unseen returns for how long before its latest packet no packet of a Conentry has
// gone regular. Conntrack counts a connection's timeout from the latter.
func (t *Table) Unseen(e *Conentry, now time.Time) time.Duration {
	since, decided := int32(math.MaxInt32), false
	for _, h := range []*datapath.Half{t.half(e.outbound), t.half(e.inbound)} {
		if h.OutDev != 0 { // else it has no packets, and LeaseFrom says nothing
			since, decided = min(since, int32(t.jiffies()-atomic.LoadUint32(&h.LeaseFrom))), true
		}
	}
	if !decided {
		return 0
	}
	return max(time.Duration(since)*t.opts.Tick-e.activity.silence(millisOf(t.since(now))), 0)
}

// ActiveSince reports whether a packet of a Conentry was seen after then.
func (t *Table) ActiveSince(e *Conentry, then time.Time) bool {
	return int32(e.activity.last-millisOf(t.since(then))) > 0
}
