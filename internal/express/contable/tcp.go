package contable

import "time"

// Conntrack sees few packets of a connection, so it may count its timeout from an
// early one, and of TCP wait for an acknowledgement that went express. That matters
// once the connection falls silent.

// silent is how long a connection must have had no packet.
const silent = time.Second

// silentAtOnce bounds how many connections one call of Silent returns.
const silentAtOnce = 1000

// reported is the state of a connection when conntrack was last updated.
type reported struct {
	mark uint32 // of the activity
	// ended is the mark when conntrack was first found to have seen an end, 0
	// if it has not.
	ended uint32
}

// SeenEnded notes whether conntrack considers a silent connection ended, and
// reports whether it has had packets since conntrack first did.
func (e *Conentry) SeenEnded(ended bool) (goneOn bool) {
	switch {
	case !ended:
		e.reported.ended = 0
	case e.reported.ended == 0:
		e.reported.ended = e.activity.mark
	default:
		return e.reported.ended != e.activity.mark
	}
	return false
}

// Silent calls fn for the connections in n places of the table, as Piece has
// them, that have fallen silent, once each time; acknowledged means that all data of TCP has
// arrived. It must run before a Sweep of these places, which retires them.
func (t *Table) Silent(from, n uint32, now time.Time, fn func(e *Conentry, acknowledged bool)) {
	left := silentAtOnce
	t.Piece(from, n, func(e *Conentry) {
		if left > 0 && t.fellSilent(e, now) {
			fn(e, t.acknowledged(e))
			left--
		}
	})
}

// fellSilent reports whether a connection has fallen silent since it was last
// reported.
func (t *Table) fellSilent(e *Conentry, now time.Time) bool {
	if !t.decided(e) || t.closed(e) {
		return false
	}
	if t.observe(e, now) < silent || e.reported.mark == e.activity.mark {
		return false
	}
	e.reported.mark = e.activity.mark
	return true
}

// acknowledged reports whether each side has acknowledged everything that the
// other has sent, by what the programs have seen.
func (t *Table) acknowledged(e *Conentry) bool {
	out, in := t.half(e.outbound), t.half(e.inbound)
	if out.OutDev == 0 || in.OutDev == 0 {
		return false
	}
	return int32(in.Ack-out.SeqEnd) >= 0 && int32(out.Ack-in.SeqEnd) >= 0
}
