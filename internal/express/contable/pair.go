package contable

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Connections between two containers. Both halves have the key of a
// container's port. A connection that conntrack knows has a third slot, the
// marker: it is never open, and has the key of packets from the wire. By it
// the programs find the Conentry of a connection that leaves conntrack
// (bpf/lib/forgotten.h), without knowing its ports.

// End is where packets of one end of a connection enter; the zero End is the
// wire.
type End struct {
	Port   int // ifindex of the container's bridge port
	Bridge int // and of the device that IP sees them come by
}

// Undecided reports whether no decision was recorded yet.
func (t *Table) Undecided(e *Conentry) bool { return !t.decided(e) }

// Join makes a Conentry one between two containers: packets for its
// container enter at there. It fails once a decision was recorded. The
// connection counts for the container that opened it.
func (t *Table) Join(e *Conentry, there End) (err error) {
	if e.peer != 0 || t.decided(e) {
		return ErrExists
	}
	if !e.initiator && t.perPort[there.Port] >= t.opts.PerContainer {
		return ErrShare
	}
	wire, _ := t.tupleAt(e.inbound)
	key := t.KeyOf(wire, there.Port)
	inbound, err := t.reserve(key)
	if err != nil {
		return err
	}
	t.takeCount(key)
	t.half(inbound).InBridge, t.half(inbound).Addrs6 = uint32(there.Bridge), native6(wire)
	if wire.Proto == unix.IPPROTO_UDP {
		t.half(inbound).Proto.NoReply = t.half(e.inbound).Proto.NoReply
	}
	t.leave(e.Port())
	t.unknow(e)
	outbound := e.outbound
	tuple, _ := t.tupleAt(outbound)
	t.relist(e, func() {
		e.peer = int32(there.Port)
		e.marker, e.isMarked, e.inbound = e.inbound, true, inbound
		if !e.initiator {
			e.swapEnds()
		}
	})
	t.half(inbound).Lease = t.half(outbound).Lease
	t.publish(inbound, outbound, wire, tuple.Reverse())
	atomic.StoreUint32(&t.half(outbound).Twin, inbound)
	t.makeMarker(e)
	t.index(e)
	return nil
}

// Pair publishes a Conentry for a connection between two containers that
// conntrack does not see, because only a bridge forwards it or rules say
// notrack. tuple is what the container at here sends. Which container opened
// the connection is not known: the one with the higher port is assumed.
func (t *Table) Pair(here, there End, tuple conntrack.Tuple, now time.Time) (*Conentry, error) {
	if !oneFamily(tuple.Src, tuple.Dst) {
		return nil, ErrFamily
	}
	if !opens(tuple) {
		here, there, tuple = there, here, tuple.Reverse()
	}
	conn := conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
	if t.isKnown(conn.Orig, conn.Reply) {
		return nil, ErrExists
	}
	if err := t.room(here.Port); err != nil {
		return nil, err
	}
	e, err := t.place(conn, true, here, there, now)
	if err == nil {
		e.Untracked = true
	}
	return e, err
}

// opens reports whether a tuple is assumed to be the original one of its
// connection.
func opens(t conntrack.Tuple) bool { return t.Src.Port() >= t.Dst.Port() }

// RetireDiscardOf removes the discard for packets that a container sends, if
// there is one.
func (t *Table) RetireDiscardOf(port int, tuple conntrack.Tuple) {
	if d := t.live.discards[t.KeyOf(tuple, port)]; d != nil {
		t.RetireDiscard(d)
	}
}

// swapEnds makes the container at the other end the one that a Conentry
// belongs to.
func (e *Conentry) swapEnds() {
	e.port, e.peer = e.peer, e.port
	e.outbound, e.inbound = e.inbound, e.outbound
	e.initiator = !e.initiator
}

// makeMarker makes the slot of a Conentry's marker one, by which the programs find
// the halves.
func (t *Table) makeMarker(e *Conentry) {
	h := t.half(e.marker)
	h.State = datapath.SlotClosed
	atomic.StoreUint32(&h.Generation, 0)
	h.InBridge = e.outbound
	h.Twin = e.marker
}

// reviveMarker finds the marker of a Conentry between two containers, which conntrack does
// not see if it is untracked; it then has none.
func (t *Table) reviveMarker(e *Conentry) bool {
	orig, reply := t.tuples(e)
	for _, tuple := range [2]conntrack.Tuple{orig, reply} {
		e.marker, e.isMarked = t.slotOf(t.KeyOf(tuple, 0))
		if e.isMarked {
			break
		}
	}
	return e.isMarked != e.Untracked
}
