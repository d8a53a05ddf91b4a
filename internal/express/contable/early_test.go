package contable_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// spares is a bed with slots that are set aside for a container, and its ring.
func spares(t *testing.T) (*bed, *datapath.Spares) {
	t.Helper()
	b, ring := newBed(t, options()), new(datapath.Spares)
	b.OpenEarly(7, 2, ring, time.Second)
	b.RefillEarly(start)
	return b, ring
}

// take is a program that composes an early Conentry of the next slots.
func (b *bed) take(ring *datapath.Spares) (sent *datapath.Half, slot uint32) {
	slot = ring.Slots[ring.Taken%uint32(datapath.SparesOfPort)]
	ring.Taken++
	sent = &b.halves[slot]
	for i, h := range []*datapath.Half{sent, &b.halves[sent.Twin]} {
		h.State, h.Locked, h.Proto.NoReply = datapath.SlotOpen, 0, datapath.Early
		h.Key.Addrs, h.Key.Ports = uint64(slot), uint32(1+i)
	}
	return sent, slot
}

// end has the next early Conentry end that is due.
func (b *bed) end(now time.Time) {
	b.t.Helper()
	due, _ := b.DueEarly(now)
	if len(due) != 1 {
		b.t.Fatalf("%d are due, want 1", len(due))
	}
	b.EndEarly(due[0])
}

// given reports whether a slot is one of those that programs may take.
func given(ring *datapath.Spares, slot uint32) bool {
	for i := ring.Taken; i != ring.Given; i++ {
		if ring.Slots[i%uint32(datapath.SparesOfPort)] == slot {
			return true
		}
	}
	return false
}

// Slots of an early Conentry that has ended are set aside again after one grace period, never
// while a program may be using them.
func TestEarlySlotsAgain(t *testing.T) {
	b, ring := spares(t)
	sent, slot := b.take(ring)
	sent.Proto.NoReply |= datapath.EarlyFIN
	b.halves[sent.Twin].Proto.NoReply |= datapath.EarlyFIN
	b.grace.running = true
	b.end(start)
	for range 3 {
		b.RefillEarly(start)
		if given(ring, slot) || sent.State != datapath.SlotClosed || sent.Key.Ports == 0 {
			t.Fatalf("%+v: it is used again while a program runs", sent)
		}
	}
	b.grace.running = false
	for range datapath.SparesOfPort {
		b.RefillEarly(start)
		if given(ring, slot) {
			return
		}
		b.take(ring)
	}
	t.Error("it is not used again")
}

// A FIN that goes express while its Conentry ends makes it due once more.
func TestEarlyEndsLate(t *testing.T) {
	b, ring := spares(t)
	sent, slot := b.take(ring)
	b.DueEarly(start)
	b.end(start.Add(time.Second)) // as one that lasts and cannot be taken up
	sent.Proto.NoReply |= datapath.EarlyFIN
	b.RefillEarly(start)
	if given(ring, slot) {
		t.Fatal("it is used again with a FIN that conntrack has not heard of")
	}
	due, _ := b.DueEarly(start)
	if len(due) != 1 || due[0].State != contable.EarlyEnded {
		t.Fatalf("%+v are due, want one that has ended", due)
	}
	b.EndEarly(due[0])
	if sent.Proto.NoReply != 0 {
		t.Error("the FIN was not taken")
	}
}
