package contable

import (
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Adopt takes over what an earlier daemon left in the table. Conentries whose
// connection get still finds, and whose port keep approves, stay as they are;
// packets do not notice. All others are removed. It returns how many stay.
func (t *Table) Adopt(keep func(port int) bool, get func(conntrack.Tuple) (conntrack.Conn, error), now time.Time) int {
	t.eachSlot(func(slot uint32, h *datapath.Half) {
		if h.State == datapath.SlotEmpty || h.Key.Side>>datapath.SideShift == 0 || t.bySlot.get(slot) != nil {
			return // empty, or found through its twin
		}
		e := t.revive(slot, get, now)
		if e == nil || !keep(e.Port) || e.Peer != 0 && !keep(e.Peer) {
			return
		}
		t.insert(e)
	})
	t.clear(func(slot uint32) bool { return t.bySlot.get(slot) != nil })
	return t.live.conentries
}

// revive returns the Conentry whose outbound slot this is, or nil if its two
// halves do not belong together or conntrack disagrees.
func (t *Table) revive(outbound uint32, get func(conntrack.Tuple) (conntrack.Conn, error), now time.Time) *Conentry {
	out := t.half(outbound)
	if out.State != datapath.SlotOpen || !t.has(out.Twin) {
		return nil
	}
	in := t.half(out.Twin)
	if in.State != datapath.SlotOpen || in.Twin != outbound {
		return nil
	}
	tuple, port := t.tupleAt(outbound)
	wire, peer := t.tupleAt(out.Twin)
	e := &Conentry{Port: port, Peer: peer, Composed: now, outbound: outbound, inbound: out.Twin}
	conn, err := get(tuple)
	e.Conn, e.initiator = conn, tuple == conn.Orig
	if peer != 0 && !t.reviveMarker(e, err) || peer == 0 && err != nil {
		return nil
	}
	conn = e.Conn
	if e.containerTuple() != tuple || e.wireTuple() != wire || t.Lookup(conn.Orig) != nil {
		return nil
	}
	if !translates(out, tuple, wire.Reverse()) || !translates(in, wire, tuple.Reverse()) {
		return nil
	}
	if !t.isFound(outbound) || !t.isFound(out.Twin) {
		return nil // the daemon died in publish or empty
	}
	e.activity.begin(now, 0)
	e.Lease = time.Duration(min(out.Lease, in.Lease)) * t.opts.Tick
	t.SetLease(e, t.opts.Lease, "")
	if peer != 0 && !e.initiator {
		e.swapEnds()
	}
	return e
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
	clear(t.bySlot.pages)
	clear(t.byTuple)
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
