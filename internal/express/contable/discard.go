package contable

import (
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Discard is a connection of a container whose packets Netfilter drops, so
// that conntrack does not know it (Confilter -1, section V-B2 of the paper).
// The programs drop its packets at once as long as they see Netfilter drop one
// of them now and then.
type Discard struct {
	// Port is the ifindex of the container's bridge port.
	Port int
	// Tuple is what the container sends.
	Tuple conntrack.Tuple
	// Composed is when the discard was placed.
	Composed time.Time

	slot uint32
	seen uint32 // LeaseFrom at the last sweep
}

// closedDiscard waits until no program can be using it.
type closedDiscard struct {
	*Discard
	until uint64
}

// Discarded counts the packets that the programs dropped.
type Discarded struct {
	Packets, Bytes uint64
}

func (s Discarded) plus(o Discarded) Discarded {
	return Discarded{s.Packets + o.Packets, s.Bytes + o.Bytes}
}

// Discard publishes a discard for what the container behind port sends to a MAC address.
func (t *Table) Discard(port int, to [6]byte, tuple conntrack.Tuple, now time.Time) error {
	if !oneFamily(tuple.Src, tuple.Dst) {
		return ErrFamily
	}
	key := t.KeyOf(tuple, port)
	if t.live.discards[key] != nil || t.Lookup(tuple) != nil {
		return ErrExists
	}
	if err := t.room(port); err != nil {
		return err
	}
	slot, err := t.reserve(key)
	if err != nil {
		return err
	}
	t.takeCount(key)
	h := t.half(slot)
	h.Twin = slot
	h.Lease = t.ticks(min(discardLease, t.opts.Lease))
	h.Addrs6 = native6(tuple)
	h.OutMacs = macsOf(to)
	t.live.addDiscard(key, &Discard{Port: port, Tuple: tuple, Composed: now, slot: slot})
	h.State = datapath.SlotDiscard
	t.show(slot)
	t.perPort[port]++
	return nil
}

// room returns an error if a container may have no further entry.
func (t *Table) room(port int) error { return t.roomBeside(port, 0) }

// roomBeside is room for the connection of so many of the container's pairs.
func (t *Table) roomBeside(port, pairs int) error {
	own := -pairs
	if p := t.early.ports[port]; p != nil {
		own += p.pairs
	}
	if t.Len()+t.early.pairs-pairs >= t.opts.Connections {
		return ErrFull
	}
	if t.perPort[port]+own >= t.opts.PerContainer {
		return ErrShare
	}
	return nil
}

// Discards calls fn for every discard with what it has dropped; fn may retire
// it.
func (t *Table) Discards(fn func(*Discard, Discarded)) {
	for _, d := range t.live.discards {
		fn(d, t.dropped(d))
	}
}

// Dropping reports whether Netfilter was seen to drop a packet of a discard.
func (t *Table) Dropping(d *Discard) bool {
	h := t.half(d.slot)
	return h.OutDev != 0 && atomic.LoadUint32(&h.Generation) == t.settings.Generation
}

// dropped reads the packets of a discard.
func (t *Table) dropped(d *Discard) Discarded {
	h := t.half(d.slot)
	return Discarded{atomic.LoadUint64(&h.Packets), atomic.LoadUint64(&h.Bytes)}
}

// Discarded sums what all discards have dropped since the start.
func (t *Table) Discarded() Discarded {
	sum := t.pastDiscarded
	for _, d := range t.live.discards {
		sum = sum.plus(t.dropped(d))
	}
	for _, r := range t.retiredDiscards {
		sum = sum.plus(t.dropped(r.Discard))
	}
	return sum
}

// RetireDiscard removes a discard: from now on its packets go regular.
func (t *Table) RetireDiscard(d *Discard) {
	key := t.KeyOf(d.Tuple, d.Port)
	if t.live.discards[key] != d {
		return
	}
	t.close(d.slot)
	t.live.removeDiscard(key)
	t.leave(d.Port)
	t.retiredDiscards = append(t.retiredDiscards, closedDiscard{d, t.opts.Grace.Next()})
}

// leave removes one entry from a container's share.
func (t *Table) leave(port int) {
	if t.perPort[port]--; t.perPort[port] == 0 {
		delete(t.perPort, port)
	}
}

// releaseDiscards empties the slots of discards as Release does, after a grace period.
func (t *Table) releaseDiscards(over uint64) {
	for len(t.retiredDiscards) > 0 && t.retiredDiscards[0].until <= over {
		d := t.retiredDiscards[0].Discard
		t.pastDiscarded = t.pastDiscarded.plus(t.dropped(d))
		t.empty(d.slot)
		t.retiredDiscards = t.retiredDiscards[1:]
	}
}

// sweepDiscards retires discards of which no packet was dropped since the last
// sweep, and those that a program has closed. Packets of the latter pass now.
func (t *Table) sweepDiscards(now time.Time) {
	for _, d := range t.live.discards {
		h := t.half(d.slot)
		from := atomic.LoadUint32(&h.LeaseFrom)
		if h.State != datapath.SlotDiscard || from == d.seen && now.Sub(d.Composed) >= undecidedDiscard {
			t.RetireDiscard(d)
		}
		d.seen = from
	}
}

// discardLease is how long a discard is used after Netfilter was seen to drop a
// packet of it. Nothing announces that Netfilter lets the next one pass.
const discardLease = 100 * time.Millisecond

// undecidedDiscard is how long a discard may wait for its first packet to be
// dropped.
const undecidedDiscard = 2 * time.Second
