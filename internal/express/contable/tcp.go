package contable

import "time"

// Conntrack sees few of a TCP connection's packets: it may go on waiting for an
// acknowledgement that went express. That matters once the connection falls
// silent.

// silent is how long a connection has had no packet when it is looked at.
const silent = time.Second

// silentAtOnce bounds how many connections one call of Silent gives.
const silentAtOnce = 1000

// told is what a TCP connection was like when conntrack was told last.
type told struct {
	mark uint64 // of the activity
	// ended is the mark when conntrack was first found to see an end, or 0.
	ended uint64
}

// SeenEnded notes whether conntrack sees a silent connection ended, and tells
// whether it has gone on since conntrack was first found to.
func (e *Conentry) SeenEnded(ended bool) (goneOn bool) {
	switch {
	case !ended:
		e.told.ended = 0
	case e.told.ended == 0:
		e.told.ended = e.activity.mark
	default:
		return e.told.ended != e.activity.mark
	}
	return false
}

// Silent calls fn for TCP connections that have fallen silent, once for each
// time; acknowledged tells that all data has arrived. A Sweep that retires them
// comes after it.
func (t *Table) Silent(now time.Time, fn func(e *Conentry, acknowledged bool)) {
	left := silentAtOnce
	for e := range t.entries {
		if left == 0 {
			return
		}
		if e.Conn.Orig.Proto != protoTCP || !t.decided(e) || t.closed(e) {
			continue
		}
		e.activity.look(t.mark(e), now)
		if now.Sub(e.activity.last) < silent || e.told.mark == e.activity.mark {
			continue
		}
		e.told.mark = e.activity.mark
		fn(e, t.acknowledged(e))
		left--
	}
}

// acknowledged tells whether each side has acknowledged all that the other sent,
// as far as that was seen.
func (t *Table) acknowledged(e *Conentry) bool {
	out, in := &t.halves[e.outbound], &t.halves[e.inbound]
	if out.OutDev == 0 || in.OutDev == 0 {
		return false
	}
	return int32(in.Ack-out.SeqEnd) >= 0 && int32(out.Ack-in.SeqEnd) >= 0
}
