package contable

import (
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

const (
	// maxIdle bounds what a connection's own rhythm can stretch the idle time to.
	maxIdle = 10 * time.Minute
	// undecided is how long a Conentry whose packets enter the regular way may
	// wait for one to leave. Those of connections that never reach an uplink,
	// as to the host itself, never do.
	undecided = 5 * time.Second
	// discouraged is the count of packets that such a connection starts again
	// from: the programs count to 65535 before they begin anew.
	discouraged = 1<<15 + 1
)

// activity follows when a Conentry was last used. The programs leave only
// counters, so it is as exact as the time between two sweeps.
type activity struct {
	mark  uint64 // changes with every packet
	last  time.Time
	limit time.Duration // 0: the table's
}

func (a *activity) begin(now time.Time, rhythm time.Duration) {
	a.last = now
	a.limit = min(2*rhythm, maxIdle)
}

// look notes whether there was a packet since the last look.
func (a *activity) look(mark uint64, now time.Time) {
	if mark != a.mark {
		a.mark, a.last = mark, now
	}
}

// decided tells whether the decision about either direction was ever seen.
func (t *Table) decided(e *Conentry) bool {
	return t.halves[e.outbound].OutDev != 0 || t.halves[e.inbound].OutDev != 0
}

// entered tells whether a packet was seen to enter the regular way and not to
// leave it.
func (t *Table) entered(e *Conentry) bool {
	return t.halves[e.outbound].Probe != 0 || t.halves[e.inbound].Probe != 0
}

// closed tells whether a program has seen the connection end.
func (t *Table) closed(e *Conentry) bool {
	return t.halves[e.outbound].State == datapath.SlotClosed || t.halves[e.inbound].State == datapath.SlotClosed
}

// discourage keeps a connection from being a candidate again soon.
func (t *Table) discourage(e *Conentry) {
	for _, slot := range [2]uint32{e.outbound, e.inbound} {
		if tuple, port := t.tupleAt(slot); port != 0 {
			h := t.hash(t.KeyOf(tuple, port))
			atomic.StoreUint64(t.count(h), h&^0xffff|discouraged)
		}
	}
}

// mark folds everything that a packet changes in a Conentry, express or not.
func (t *Table) mark(e *Conentry) uint64 {
	var mark uint64
	for _, slot := range [2]uint32{e.outbound, e.inbound} {
		h := &t.halves[slot]
		mark += atomic.LoadUint64(&h.Packets)<<32 + uint64(atomic.LoadUint32(&h.LeaseFrom)) + uint64(h.Probe)
	}
	return mark
}

// Sweep retires what has been idle for too long and releases what was retired.
// It returns how many Conentries it retired.
func (t *Table) Sweep(now time.Time) int {
	retired := 0
	for e := range t.entries {
		e.activity.look(t.mark(e), now)
		idle := now.Sub(e.activity.last)
		switch {
		case t.closed(e): // and the event of it was lost
			t.Retire(e, now)
			retired++
		case !t.decided(e) && t.entered(e) && now.Sub(e.Composed) >= undecided:
			t.discourage(e)
			t.Retire(e, now)
			retired++
		case idle >= max(t.opts.Idle, e.activity.limit):
			t.returned.put(t.KeyOf(e.containerTuple(), 0), e.activity.last, now)
			t.Retire(e, now)
			retired++
		}
	}
	t.sweepDiscards(now)
	t.Release(now)
	t.returned.expire(now)
	return retired
}

// rhythms remembers connections that were retired for being idle. One that
// comes back has shown its rhythm, and is kept for twice as long: the sensor
// that speaks every 30 s (scon.txt leaves open how to choose the idle time).
type rhythms map[datapath.Key]time.Time // last packet

// maxRhythms bounds the memory of connections that never come back.
const maxRhythms = 4096

func (r rhythms) put(t datapath.Key, last, now time.Time) {
	if len(r) < maxRhythms {
		r[t] = last
	}
}

// take returns how long ago a connection last spoke, 0 if that is not known.
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
