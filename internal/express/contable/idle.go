package contable

import (
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

const (
	// maxIdle bounds how much a connection's own rhythm can stretch the idle
	// time.
	maxIdle = 10 * time.Minute
	// undecided is how long a Conentry may wait for a packet that has entered
	// the regular path to leave it. Packets that never reach an uplink, such
	// as those to the host itself, never do.
	undecided = 5 * time.Second
	// discouraged is the packet count from which such a connection starts
	// again. The programs count to 65535 before they start from zero.
	discouraged = 1<<15 + 1
)

// activity is when a Conentry was last used. The programs keep only counters,
// so it is as exact as the time between two sweeps.
type activity struct {
	mark  uint32 // changes with every packet
	last  millis
	limit millis // twice its longest silence
}

func (a *activity) begin(now millis, silence time.Duration) {
	a.last = now
	a.stretch(silence)
}

// stretch takes up a silence that the connection did not end in.
func (a *activity) stretch(silence time.Duration) {
	a.limit = max(a.limit, millisOf(min(2*silence, maxIdle)))
}

// observe notes whether a packet was counted since it was called last.
func (a *activity) observe(mark uint32, now millis) {
	if mark != a.mark {
		a.stretch(a.silence(now))
		a.mark, a.last = mark, now
	}
}

// silence is for how long no packet was seen: 0 if one was seen after now, by a reader.
func (a *activity) silence(now millis) time.Duration {
	return time.Duration(max(int32(now-a.last), 0)) * time.Millisecond
}

// observe looks at a Conentry, and returns for how long it has had no packet.
func (t *Table) observe(e *Conentry, now time.Time) time.Duration {
	at := millisOf(t.since(now))
	e.activity.observe(t.mark(e), at)
	return e.activity.silence(at)
}

// decided reports whether the decision of either direction was ever recorded.
func (t *Table) decided(e *Conentry) bool {
	return t.half(e.outbound).OutDev != 0 || t.half(e.inbound).OutDev != 0
}

// entered reports whether a packet was seen to enter the regular path and not
// to leave it.
func (t *Table) entered(e *Conentry) bool {
	return t.half(e.outbound).Probe != 0 || t.half(e.inbound).Probe != 0
}

// closed reports whether a program has seen the connection end.
func (t *Table) closed(e *Conentry) bool {
	return t.half(e.outbound).State == datapath.SlotClosed || t.half(e.inbound).State == datapath.SlotClosed
}

// discourage keeps a connection from being a candidate again soon.
func (t *Table) discourage(e *Conentry) {
	for _, slot := range [2]uint32{e.outbound, e.inbound} {
		if tuple, port := t.tupleAt(slot); port != 0 {
			h := t.hash(t.KeyOf(tuple, port))
			atomic.StoreUint64(t.count(h), h&signature|discouraged)
		}
	}
}

// mark combines everything in a Conentry that a packet changes, express or
// regular.
func (t *Table) mark(e *Conentry) uint32 {
	var mark uint64
	for _, slot := range [2]uint32{e.outbound, e.inbound} {
		h := t.half(slot)
		mark += atomic.LoadUint64(&h.Packets)<<32 + uint64(atomic.LoadUint32(&h.LeaseFrom)) + uint64(h.Probe)
	}
	return uint32(mark * 0x9e3779b97f4a7c15 >> 32)
}

// Sweep checks the Conentries in n places of the table, as Piece has them, and
// retires those that have been idle for too long. At the end of the table it sweeps
// what there is little of.
func (t *Table) Sweep(from, n uint32, now time.Time) (next uint32) {
	next = t.Piece(from, n, func(e *Conentry) { t.sweep(e, now) })
	if next == 0 {
		t.sweepDiscards(now)
		t.Release()
		t.returned.expire(now)
		t.entries.trim()
	}
	return next
}

func (t *Table) sweep(e *Conentry, now time.Time) {
	t.account(e)
	t.measure(e, now)
	idle := t.observe(e, now)
	switch {
	case t.closed(e): // and its event was lost
		t.Retire(e)
	case !t.decided(e) && t.entered(e) && t.Age(e, now) >= undecided:
		t.discourage(e)
		t.Retire(e)
	case idle >= t.idleLimit(e):
		tuple, _ := t.tupleAt(e.outbound)
		t.returned.put(t.KeyOf(tuple, 0), now.Add(-idle))
		t.Retire(e)
	}
}

// idleLimit is how long a Conentry may be idle: twice as long as it has been before
// if there is room. Without room it gives way to others.
func (t *Table) idleLimit(e *Conentry) time.Duration {
	if 2*t.Len() > t.opts.Connections || 2*t.perPort[e.Port()] > t.opts.PerContainer {
		return t.opts.Idle
	}
	return max(t.opts.Idle, e.activity.limit.duration())
}

// rhythms remembers connections that were retired for being idle, with the
// time of their last packet. One that returns has shown its interval and is
// kept twice as long: a sensor that sends every 30 s. The paper leaves the
// choice of the idle time open.
type rhythms map[datapath.Key]time.Time // last packet

// maxRhythms bounds the memory of connections that never return.
const maxRhythms = 4096

func (r rhythms) put(t datapath.Key, last time.Time) {
	if len(r) < maxRhythms {
		r[t] = last
	}
}

// take returns how long ago a connection had its last packet, 0 if that is not
// known.
func (r rhythms) take(t datapath.Key, now time.Time) time.Duration {
	last, ok := r[t]
	if !ok {
		return 0
	}
	delete(r, t)
	return now.Sub(last)
}

func (r rhythms) expire(now time.Time) {
	for t, last := range r {
		if now.Sub(last) > maxIdle {
			delete(r, t)
		}
	}
}
