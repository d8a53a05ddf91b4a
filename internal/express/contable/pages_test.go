package contable_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// small is a table whose pages have eight slots: four connections.
func small(t *testing.T) *bed {
	o := contable.Options{Connections: 1 << 16, PerContainer: 1 << 16, Idle: time.Hour, Lease: time.Second, Tick: time.Millisecond, PageSlots: 8}
	return newBed(t, o)
}

// A table wants a page before its slots are used up, refuses connections only if it gets
// none, and goes on when it does.
func TestGrows(t *testing.T) {
	b := small(t)
	if page, wants := b.Wants(); wants {
		t.Errorf("an empty table wants page %d", page)
	}
	for i := range 4 {
		if _, wants := b.Wants(); wants != (i == 3) { // half a page is to be free
			t.Errorf("with %d connections it wants a page: %v", i, wants)
		}
		b.compose(7, masqueraded(i), true, start)
	}
	conn := masqueraded(4)
	if _, err := b.Compose(endOf(7), conn.Orig, conn, start); !errors.Is(err, contable.ErrFull) {
		t.Fatalf("without a page: %v", err)
	}
	b.grow()
	b.compose(7, conn, true, start)
	if bytes, room := b.Size(); bytes < 2*datapath.PageSlots*192 || room != 8 {
		t.Errorf("two pages are %d bytes, for %d connections", bytes, room)
	}
	for i := range 4 { // those before are where they were
		if e := b.Lookup(masqueraded(i).Orig); e == nil || b.half(masqueraded(i).Orig, 7) == nil {
			t.Errorf("connection %d is gone", i)
		}
	}
	for i := 5; i < 64; i++ {
		b.grow()
		b.compose(7, masqueraded(i), true, start)
	}
}

// The last pages are given back when none of their slots is in use, nor has just been,
// and never so many that the table would want one again.
func TestShrinks(t *testing.T) {
	b := small(t)
	for i := range 64 {
		b.grow()
		b.compose(7, masqueraded(i), true, start)
	}
	_, before := b.Size()
	if page, taken := b.TakeSurplus(); taken {
		t.Fatalf("page %d of a table in use was taken", page)
	}
	for i := 8; i < 64; i++ {
		b.Retire(b.Lookup(masqueraded(i).Orig))
	}
	if page, taken := b.TakeSurplus(); taken {
		t.Fatalf("page %d was taken before its slots were released", page)
	}
	b.Release()
	last := len(b.memory.Halves)
	for {
		page, taken := b.TakeSurplus()
		if !taken {
			break
		}
		if page >= last {
			t.Errorf("page %d was taken after %d", page, last)
		}
		if last = page; b.memory.Halves[page] != nil {
			t.Errorf("page %d is there", page)
		}
		if next, wants := b.Wants(); wants {
			t.Errorf("without page %d, %d is wanted", page, next)
		}
	}
	if _, now := b.Size(); now >= before || last == len(b.memory.Halves) {
		t.Errorf("room for %d connections, before %d", now, before)
	}
	for i := range 8 {
		if b.half(masqueraded(i).Orig, 7) == nil {
			t.Errorf("connection %d is gone", i)
		}
	}
	for i := 100; i < 164; i++ { // pages that were given back can be had again
		b.grow()
		b.compose(7, masqueraded(i), true, start)
	}
}

// Outer headers have room only where a tunnel's device may be bypassed, and those of an
// earlier connection are gone.
func TestOuters(t *testing.T) {
	b := newBed(t, options())
	if page, wants := b.WantsOuters(); wants {
		t.Errorf("page %d wants room for outer headers", page)
	}
	b.settings.Tunnels = 0xb512
	if page, wants := b.WantsOuters(); !wants || page != 0 {
		t.Fatalf("page %d wants room for outer headers: %v", page, wants)
	}
	outers := make([]datapath.Outer, datapath.PageSlots)
	b.AddOuters(0, outers)
	if page, wants := b.WantsOuters(); wants {
		t.Errorf("page %d wants room again", page)
	}
	e := b.compose(7, masqueraded(1), true, start)
	outers[b.half(masqueraded(1).Reply, 0).Twin] = datapath.Outer{Generation: b.settings.Generation, Dev: 9}
	b.Retire(e)
	b.Release()
	for i := range outers {
		if outers[i] != (datapath.Outer{}) {
			t.Errorf("slot %d has outer headers: %+v", i, outers[i])
		}
	}
}
