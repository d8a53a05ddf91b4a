package contable

import (
	"errors"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Adopt takes over what an earlier daemon left in the table. Conentries whose
// connection get still finds, and whose port keep approves, stay as they are;
// packets do not notice. All others are removed. It returns how many stay.
func (t *Table) Adopt(keep func(port int) bool, get func(conntrack.Tuple) (conntrack.Conn, error), now time.Time) int {
	t.eachSlot(func(slot uint32, h *datapath.Half) {
		if h.State == datapath.SlotEmpty || h.Key.Side>>datapath.SideShift == 0 || t.bySlot[slot] != 0 || t.Len() >= t.opts.Connections {
			return // empty, or found through its twin
		}
		e := t.entries.take()
		if e == nil {
			return
		}
		if !t.revive(e, slot, get, now) || !keep(e.Port()) || e.peer != 0 && !keep(e.Peer()) {
			t.entries.give(e)
			return
		}
		t.insert(e)
	})
	t.clear(func(slot uint32) bool { return t.bySlot[slot] != 0 })
	return t.live.conentries
}

// revive makes e the Conentry whose outbound slot this is. It reports false if its two
// halves do not belong together or conntrack disagrees.
func (t *Table) revive(e *Conentry, outbound uint32, get func(conntrack.Tuple) (conntrack.Conn, error), now time.Time) bool {
	out := t.half(outbound)
	if out.State != datapath.SlotOpen || !t.has(out.Twin) {
		return false
	}
	in := t.half(out.Twin)
	if in.State != datapath.SlotOpen || in.Twin != outbound {
		return false
	}
	tuple, port := t.tupleAt(outbound)
	wire, peer := t.tupleAt(out.Twin)
	e.port, e.peer, e.composed, e.outbound, e.inbound = int32(port), int32(peer), t.since(now), outbound, out.Twin
	conn, err := get(tuple)
	if peer != 0 && errors.Is(err, conntrack.ErrNotFound) {
		e.Untracked, e.initiator = true, opens(tuple)
	} else if err != nil {
		return false
	} else {
		e.initiator, e.id, e.Status, e.Mark = tuple == conn.Orig, conn.ID, conn.Status, conn.Mark
	}
	orig, reply := t.tuples(e)
	if !e.Untracked && (conn.Orig != orig || conn.Reply != reply) || e.Untracked && wire != tuple.Reverse() || t.isKnown(orig, reply) {
		return false
	}
	if peer != 0 && !t.reviveMarker(e) {
		return false
	}
	if !translates(out, tuple, wire.Reverse()) || !translates(in, wire, tuple.Reverse()) {
		return false
	}
	if !t.isFound(outbound) || !t.isFound(out.Twin) {
		return false // the daemon died in publish or empty
	}
	e.activity.begin(millisOf(e.composed), 0)
	e.lease = millisOf(time.Duration(min(out.Lease, in.Lease)) * t.opts.Tick)
	t.SetLease(e, t.opts.Lease)
	if peer != 0 && !e.initiator {
		e.swapEnds()
	}
	return true
}

// translates reports whether a half translates packets of one tuple into packets of
// another.
func translates(h *datapath.Half, from, to conntrack.Tuple) bool {
	return translation{h.OutAddrs, h.OutPorts, h.AddrDelta, h.PortDelta} == translate(from, to)
}

// Clear removes everything, including what this Table does not know.
func (t *Table) Clear() {
	t.clear(func(uint32) bool { return false })
	t.live.clear()
	t.entries.clear()
	discardPages(t.bySlot)
	discardPages(t.byTuple.places)
	t.early = early{ports: make(map[int]*earlyPort)}
	clear(t.strays)
	clear(t.perPort)
	t.retired, t.retiredDiscards = nil, nil
}

// clear empties the slots that keep does not approve.
func (t *Table) clear(keep func(slot uint32) bool) {
	t.eachSlot(func(slot uint32, h *datapath.Half) {
		if h.State != datapath.SlotEmpty && !keep(slot) {
			t.empty(slot)
		}
	})
	t.clearPlaces(keep)
}
