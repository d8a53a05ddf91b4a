package contable

import "time"

// Conntrack sees few of a TCP connection's packets: it may go on waiting for an
// acknowledgement that went express, and remember one that is long past. Both
// matter once the connection falls silent or is reset.

const (
	// silent is how long a connection has had no packet when it is looked at.
	silent = time.Second
	// firstDue is the count of express bytes at which conntrack's memory is out
	// of date for the first time. It may be so again whenever the count has
	// doubled: until then packets can still be in the window that it knows.
	firstDue = 64 << 10
	// mostDue bounds the distance to the next time: half of what keeps sequence
	// numbers comparable.
	mostDue = 1 << 30
	// dueAtOnce bounds how many connections one call of Due gives.
	dueAtOnce = 1000
)

// told is what a TCP connection was like when conntrack was told last.
type told struct {
	mark uint64 // of the activity
	due  uint64 // express bytes at which it is the next time
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

// Due calls fn for TCP connections about which conntrack should be told now:
// those that have fallen silent, and those that have gone far. acknowledged
// tells of a silent one that all data has arrived. It follows a Sweep.
func (t *Table) Due(now time.Time, fn func(e *Conentry, isSilent, acknowledged bool)) {
	left := dueAtOnce
	for e := range t.entries {
		if left == 0 {
			return
		}
		if e.Conn.Orig.Proto != protoTCP || !t.decided(e) || t.closed(e) {
			continue
		}
		bytes := t.express(e).Bytes
		isSilent := now.Sub(e.activity.last) >= silent && e.told.mark != e.activity.mark
		if !isSilent && bytes < max(e.told.due, firstDue) {
			continue
		}
		if isSilent {
			e.told.mark = e.activity.mark
		}
		e.told.due = bytes + min(max(bytes, firstDue), mostDue)
		fn(e, isSilent, isSilent && t.acknowledged(e))
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
