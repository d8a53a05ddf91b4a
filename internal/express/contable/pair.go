package contable

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Connections between two containers. Both halves have the key of a container's
// port then. Of one that conntrack knows there is a third slot, the marker: never
// open, with the key that packets from the wire would have. By it the filter of
// conntrack's messages (bpf/conntrack_end.bpf.c) finds that there is a Conentry,
// without knowing its ports.

// End is where packets of one end of a connection enter; zero is the wire.
type End struct {
	Port   int // ifindex of the container's bridge port
	Bridge int // and of the device that IP sees them come by
}

// Has tells whether a port is the one of either end.
func (e *Conentry) Has(port int) bool { return port != 0 && (e.Port == port || e.Peer == port) }

// Undecided tells that no packet was seen at the end of the regular way yet.
func (t *Table) Undecided(e *Conentry) bool { return !t.decided(e) }

// Join makes a Conentry one between two containers: the packets that its container
// receives enter there. That must be found out before any
// decision was seen. The container that opened the connection is accounted for it.
func (t *Table) Join(e *Conentry, there End) (err error) {
	if e.Peer != 0 || t.decided(e) {
		return ErrExists
	}
	if !e.initiator && t.perPort[there.Port] >= t.opts.PerContainer {
		return ErrShare
	}
	wire := e.wireTuple()
	key := t.KeyOf(wire, there.Port)
	inbound, err := t.reserve(key)
	if err != nil {
		return err
	}
	if err := t.outers.Forget(inbound); err != nil {
		t.empty(inbound)
		return err
	}
	t.halves[inbound].InBridge = uint32(there.Bridge)
	t.publish(inbound, e.outbound, key, wire, e.containerTuple().Reverse())
	atomic.StoreUint32(&t.halves[e.outbound].Twin, inbound)
	t.leave(e.Port)
	e.Peer = there.Port
	e.marker, e.isMarked, e.inbound = e.inbound, true, inbound
	t.makeMarker(e.marker)
	if !e.initiator {
		e.turn()
	}
	t.insert(e)
	return nil
}

// Pair publishes a Conentry for a connection between two containers that
// conntrack does not see: the bridge alone, or rules that say so, keep it from
// there. tuple is what the container at here sends. Who opened the connection is
// not known: whoever has the higher port is taken for it.
func (t *Table) Pair(here, there End, tuple conntrack.Tuple, now time.Time) (*Conentry, error) {
	if !oneFamily(tuple.Src, tuple.Dst) {
		return nil, ErrFamily
	}
	if !opens(tuple) {
		here, there, tuple = there, here, tuple.Reverse()
	}
	conn := conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
	if t.byTuple[t.KeyOf(conn.Orig, 0)] != nil || t.byTuple[t.KeyOf(conn.Reply, 0)] != nil {
		return nil, ErrExists
	}
	if err := t.room(here.Port); err != nil {
		return nil, err
	}
	e := &Conentry{Port: here.Port, Peer: there.Port, Untracked: true, Conn: conn, Composed: now, initiator: true}
	if err := t.place(e, here, there); err != nil {
		return nil, err
	}
	return e, nil
}

// opens tells whether a tuple is taken for the original one of its connection.
func opens(t conntrack.Tuple) bool { return t.Src.Port() >= t.Dst.Port() }

// RetireDiscardOf removes the discard of what a container sends, if there is one.
func (t *Table) RetireDiscardOf(port int, tuple conntrack.Tuple, now time.Time) {
	if d := t.discards[t.KeyOf(tuple, port)]; d != nil {
		t.RetireDiscard(d, now)
	}
}

// turn has the container at the other end be the one that a Conentry is of.
func (e *Conentry) turn() {
	e.Port, e.Peer = e.Peer, e.Port
	e.outbound, e.inbound = e.inbound, e.outbound
	e.initiator = !e.initiator
}

// part takes a Conentry off those of its other end.
func (t *Table) part(e *Conentry) {
	if e.Peer == 0 {
		return
	}
	if t.joined[e.Peer]--; t.joined[e.Peer] == 0 {
		delete(t.joined, e.Peer)
	}
}

// makeMarker makes a slot a marker.
func (t *Table) makeMarker(slot uint32) {
	h := &t.halves[slot]
	h.State = datapath.SlotClosed
	atomic.StoreUint32(&h.Generation, 0)
	h.Twin = slot
}

// reviveMarker finds the marker of a Conentry between two containers. err is why
// conntrack knows none, if it does not: such a one has no marker.
func (t *Table) reviveMarker(e *Conentry, err error) bool {
	if errors.Is(err, conntrack.ErrNotFound) {
		tuple, _ := t.tupleAt(e.outbound)
		e.Untracked, e.initiator = true, opens(tuple)
		e.Conn = conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
		if !e.initiator {
			e.Conn.Orig, e.Conn.Reply = e.Conn.Reply, e.Conn.Orig
		}
	} else if err != nil {
		return false
	}
	for _, tuple := range [2]conntrack.Tuple{e.Conn.Orig, e.Conn.Reply} {
		e.marker, e.isMarked = t.slotOf(t.KeyOf(tuple, 0))
		if e.isMarked {
			break
		}
	}
	return e.isMarked != e.Untracked
}

// slotOf finds the slot of a key.
func (t *Table) slotOf(k datapath.Key) (slot uint32, ok bool) {
	for _, bucket := range t.buckets(t.hash(k)) {
		for slot := range uint32(datapath.BucketSlots) {
			slot += bucket * datapath.BucketSlots
			h := &t.halves[slot]
			if h.State != datapath.SlotEmpty && h.Key.Addrs == k.Addrs && h.Key.Ports == k.Ports && h.Key.Side == k.Side {
				return slot, t.tagged(slot)
			}
		}
	}
	return 0, false
}
