package contable

import (
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Conentry is one connection of a container. Its addresses and ports are in its slots alone,
// and it has no pointers: it lies outside of the heap, with a million others, and its place is
// used again. So it may be kept only for as long as the loop takes to do one thing; Ref
// names it for longer.
type Conentry struct {
	// Status and Mark are the connection's in conntrack; the composer keeps them up to date.
	Status, Mark uint32
	// Untracked means that conntrack does not see the connection.
	Untracked bool
	// Bridged means that IP does not see it, either: only what a bridge forwards of it is
	// express.
	Bridged bool

	initiator bool // the container opened the connection: outbound is original
	isMarked  bool
	gone      bool // no longer in the table, until its slots are empty
	ref       Ref
	id        uint32 // in conntrack
	port      int32  // ifindex of the container's bridge port
	peer      int32  // that of the container at the other end, 0 if that is outside
	outbound  uint32 // slot of the packets that the container sends
	inbound   uint32 // slot of the packets that it receives
	marker    uint32 // slot with the key of the wire, if isMarked; see pair.go
	composed  time.Duration
	lease     millis
	activity  activity
	pace      pace
	reported  reported
	counted   Totals  // in the table's totals
	links     [2]link // among those of its port, and of its peer
}

// Ref names a Conentry, and no other one that has its place later.
type Ref struct{ index, serial uint32 }

// Ref returns what Table.Live finds a Conentry by until it is gone.
func (e *Conentry) Ref() Ref { return e.ref }

// Number returns the Conentry's place, below Table.Places: what others know of it they may
// keep by that.
func (e *Conentry) Number() int { return int(e.ref.index) }

// Port returns the ifindex of the container's bridge port.
func (e *Conentry) Port() int { return int(e.port) }

// Peer returns the port of the container at the other end, which did not open the
// connection; 0 if the other end is outside.
func (e *Conentry) Peer() int { return int(e.peer) }

// Has reports whether either end of the connection is at a port.
func (e *Conentry) Has(port int) bool { return port != 0 && (e.Port() == port || e.Peer() == port) }

// Initiator reports whether the container opened the connection.
func (e *Conentry) Initiator() bool { return e.initiator }

// Gone reports whether it is no longer in the table.
func (e *Conentry) Gone() bool { return e.gone }

// Lease returns how long a decision about its packets is used before one of them goes
// regular; see Table.SetLease.
func (e *Conentry) Lease() time.Duration { return e.lease.duration() }

// Same reports whether conntrack means a Conentry's connection, and translates it as then.
func (t *Table) Same(e *Conentry, conn conntrack.Conn) bool { return conn.Same(t.Conn(e)) }

// Conn returns the connection as far as the table knows it: its tuples, and in conntrack its
// ID, status and mark.
func (t *Table) Conn(e *Conentry) conntrack.Conn {
	orig, reply := t.tuples(e)
	return conntrack.Conn{Orig: orig, Reply: reply, ID: e.id, Status: e.Status, Mark: e.Mark}
}

// Orig returns the tuple of the original direction.
func (t *Table) Orig(e *Conentry) conntrack.Tuple {
	orig, _ := t.tupleAt(e.slots()[0])
	return orig
}

// tuples returns those of the original and the reply direction.
func (t *Table) tuples(e *Conentry) (orig, reply conntrack.Tuple) {
	slots := e.slots()
	orig, _ = t.tupleAt(slots[0])
	reply, _ = t.tupleAt(slots[1])
	return orig, reply
}

// slots returns the slots of the original and the reply direction.
func (e *Conentry) slots() [2]uint32 {
	if e.initiator {
		return [2]uint32{e.outbound, e.inbound}
	}
	return [2]uint32{e.inbound, e.outbound}
}

// allSlots lists the slots of a Conentry.
func (e *Conentry) allSlots() []uint32 {
	if e.isMarked {
		return []uint32{e.outbound, e.inbound, e.marker}
	}
	return []uint32{e.outbound, e.inbound}
}

// Age returns how long ago a Conentry was placed.
func (t *Table) Age(e *Conentry, now time.Time) time.Duration { return t.since(now) - e.composed }

// since returns a time as Conentries have it.
func (t *Table) since(now time.Time) time.Duration { return now.Sub(t.made) }

// millis are milliseconds, of a time those since the table was made: low bits, by which
// up to 24 days can be told.
type millis uint32

func millisOf(d time.Duration) millis { return millis(d.Milliseconds()) }

func (m millis) duration() time.Duration { return time.Duration(m) * time.Millisecond }
