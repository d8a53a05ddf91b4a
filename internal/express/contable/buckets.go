package contable

import (
	"sync/atomic"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A key's hash selects two buckets. One of their places has the number of the half's slot
// and above it a tag, by which the programs find it. A place of a slot that is taken and
// not filled yet has a tag that is no key's.

const (
	slotMask = 1<<datapath.SlotBits - 1
	// oddTag is set in every tag of a key.
	oddTag = 1 << datapath.SlotBits
	// taken is the tag of no key.
	taken = 2 << datapath.SlotBits
)

// tag is what the programs compare in a place, as bpf/lib/contable.h has it.
func tag(hash uint64) uint32 { return uint32(hash>>32)&^slotMask | oddTag }

// places lists those that a key may have, in the order in which the programs search them.
func (t *Table) places(hash uint64) (all [2 * len(datapath.Bucket{}.Places)]*uint32) {
	mask := uint64(len(t.buckets) - 1)
	first, second := &t.buckets[hash&mask], &t.buckets[hash>>24&mask]
	for i := range first.Places {
		all[i], all[i+len(first.Places)] = &first.Places[i], &second.Places[i]
	}
	return all
}

// placeOf returns the place of a slot that has a key, whose hash is given; nil if it has
// none.
func (t *Table) placeOf(slot uint32, hash uint64) *uint32 {
	for _, p := range t.places(hash) {
		if *p&slotMask == slot && (*p&^slotMask == tag(hash) || *p&^slotMask == taken) {
			return p
		}
	}
	return nil
}

// slotOf returns the slot by which the programs find a key.
func (t *Table) slotOf(k datapath.Key) (slot uint32, ok bool) {
	hash := t.hash(k)
	for _, p := range t.places(hash) {
		if *p&^slotMask != tag(hash) {
			continue
		}
		if slot := *p & slotMask; t.has(slot) && t.keyOf(slot) == k {
			return slot, true
		}
	}
	return 0, false
}

// isFound reports whether the programs find a slot by its key.
func (t *Table) isFound(slot uint32) bool {
	p := t.placeOf(slot, t.hash(t.keyOf(slot)))
	return p != nil && *p&^slotMask != taken
}

// mostMoves bounds how many places are moved for one key: nine tenths of all can be used.
const mostMoves = 3

// freePlace returns a free place for a key in the roomier of its two buckets, after it has
// moved up to so many others if there is none; nil if that does not help.
func (t *Table) freePlace(hash uint64, moves int) *uint32 {
	all := t.places(hash)
	first, ofFirst := firstFree(all[:len(all)/2])
	second, ofSecond := firstFree(all[len(all)/2:])
	switch {
	case ofSecond > ofFirst:
		return second
	case ofFirst > 0:
		return first
	case moves == 0:
		return nil
	}
	for _, p := range all {
		was := atomic.LoadUint32(p)
		if was == 0 || was&^slotMask == taken {
			continue
		}
		to := t.freePlace(t.hash(t.keyOf(was&slotMask)), moves-1)
		if to == nil {
			continue
		}
		switch atomic.LoadUint32(p) {
		case 0: // it was moved to make room for itself
			return p
		case was:
			if atomic.CompareAndSwapUint32(to, 0, was) { // else a program was faster
				atomic.StoreUint32(p, 0) // found by both meanwhile
				return p
			}
		}
	}
	return nil
}

// firstFree returns a free place of a bucket, and how many there are.
func firstFree(bucket []*uint32) (free *uint32, n int) {
	for _, p := range bucket {
		if *p != 0 {
			continue
		}
		if n++; free == nil {
			free = p
		}
	}
	return free, n
}

// reserve takes a free slot and a place for a key, which no program finds yet.
func (t *Table) reserve(k datapath.Key) (uint32, error) {
	if _, there := t.slotOf(k); there {
		return 0, ErrExists // closed, and not released yet
	}
	slot, ok := t.free.take()
	if !ok {
		return 0, ErrFull
	}
	place := t.freePlace(t.hash(k), mostMoves)
	for ; place != nil; place = t.freePlace(t.hash(k), mostMoves) {
		if atomic.CompareAndSwapUint32(place, 0, taken|slot) { // else a program was faster
			break
		}
	}
	if place == nil {
		t.free.give(slot)
		return 0, ErrFull
	}
	h := t.half(slot)
	h.Key.Addrs, h.Key.Ports, h.Key.Side = k.Addrs, k.Ports, k.Side
	return slot, nil
}

// show makes the programs find a reserved slot by its key.
func (t *Table) show(slot uint32) {
	hash := t.hash(t.keyOf(slot))
	atomic.StoreUint32(t.placeOf(slot, hash), tag(hash)|slot)
}

// hide is the end of show.
func (t *Table) hide(slot uint32) {
	if p := t.placeOf(slot, t.hash(t.keyOf(slot))); p != nil {
		atomic.StoreUint32(p, 0)
	}
}

// empty frees a slot. Its place goes first.
func (t *Table) empty(slot uint32) {
	t.hide(slot)
	*t.half(slot) = datapath.Half{}
	if outers := t.outers[slot/datapath.PageSlots]; outers != nil {
		outers[slot%datapath.PageSlots] = datapath.Outer{}
	}
	t.free.give(slot)
}

// clearPlaces frees the places of slots that keep does not approve, and second ones of
// others: a daemon may have died while it moved one.
func (t *Table) clearPlaces(keep func(slot uint32) bool) {
	for i := range t.buckets {
		for j := range t.buckets[i].Places {
			p := &t.buckets[i].Places[j]
			slot := *p & slotMask
			if *p != 0 && !(t.has(slot) && keep(slot) && p == t.placeOf(slot, t.hash(t.keyOf(slot)))) {
				atomic.StoreUint32(p, 0)
			}
		}
	}
}
