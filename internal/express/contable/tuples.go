package contable

import (
	"math/bits"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// tuples find Conentries by both tuples of their connections, with the keys of packets from
// the wire. It is a hash table with linear probing that is two thirds full at most: the keys
// themselves are in the slots.
type tuples struct {
	places []uint32 // owner + 1, 0 if free
	mask   uint32
}

// owner is one of both tuples of a Conentry: the number of its place, twice, and 1 more for
// the reply direction.
type owner uint32

func newTuples(conentries int) (tuples, error) {
	n := uint32(1) << bits.Len32(uint32(3*conentries))
	places, err := offHeap[uint32](int(n))
	return tuples{places: places, mask: n - 1}, err
}

// wireKey is the key of an owner's tuple as packets from the wire have it.
func (t *Table) wireKey(o owner) datapath.Key {
	k := t.keyOf(t.entries.all[o/2].slots()[o%2])
	k.Side &= datapath.SideFlags
	return k
}

// home is the place where the search for a key begins.
func (t *Table) home(k datapath.Key) uint32 { return uint32(t.hash(k)>>16) & t.byTuple.mask }

// know makes Lookup find a Conentry by both tuples.
func (t *Table) know(e *Conentry) {
	for direction := range owner(2) {
		o := owner(e.ref.index)*2 + direction
		at := t.home(t.wireKey(o))
		for t.byTuple.places[at] != 0 {
			at = (at + 1) & t.byTuple.mask
		}
		t.byTuple.places[at] = uint32(o) + 1
	}
}

// unknow is the end of know. Its slots still have their keys.
func (t *Table) unknow(e *Conentry) {
	for direction := range owner(2) {
		o := owner(e.ref.index)*2 + direction
		at := t.home(t.wireKey(o))
		for t.byTuple.places[at] != uint32(o)+1 {
			at = (at + 1) & t.byTuple.mask
		}
		t.vacate(at)
	}
}

// vacate makes a place free. Those behind it that it stood in the way of move up.
func (t *Table) vacate(hole uint32) {
	x := &t.byTuple
	for at := (hole + 1) & x.mask; x.places[at] != 0; at = (at + 1) & x.mask {
		home := t.home(t.wireKey(owner(x.places[at] - 1)))
		if (at-home)&x.mask >= (at-hole)&x.mask {
			x.places[hole], hole = x.places[at], at
		}
	}
	x.places[hole] = 0
}

// withKey returns the Conentry one of whose tuples has a key, with the port of packets from
// the wire; nil if there is none.
func (t *Table) withKey(k datapath.Key) *Conentry {
	if len(t.byTuple.places) == 0 {
		return nil
	}
	for at := t.home(k); t.byTuple.places[at] != 0; at = (at + 1) & t.byTuple.mask {
		if o := owner(t.byTuple.places[at] - 1); t.wireKey(o) == k {
			return &t.entries.all[o/2]
		}
	}
	return nil
}

// Lookup returns the Conentry of a conntrack tuple, or nil.
func (t *Table) Lookup(tuple conntrack.Tuple) *Conentry {
	e := t.withKey(t.KeyOf(tuple, 0))
	if e == nil {
		return nil
	}
	if orig, reply := t.tuples(e); tuple != orig && tuple != reply {
		return nil // an IPv6 connection with the same digest of its addresses, see bpf/lib/packet.h
	}
	return e
}

// isKnown reports whether either tuple of a connection is a Conentry's.
func (t *Table) isKnown(orig, reply conntrack.Tuple) bool {
	return t.withKey(t.KeyOf(orig, 0)) != nil || t.withKey(t.KeyOf(reply, 0)) != nil
}
