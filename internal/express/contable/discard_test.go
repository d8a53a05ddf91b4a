package contable_test

import (
	"errors"
	"testing"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// A discard is one half; it stays while Netfilter is seen to drop its packets,
// and what it has dropped is counted beyond its end.
func TestDiscard(t *testing.T) {
	b := newBed(t, options())
	tuple := masqueraded(1).Orig
	if err := b.Discard(7, [6]byte{}, tuple, start); err != nil {
		t.Fatal(err)
	}
	h := b.half(tuple, 7)
	if h == nil || b.inUse() != 1 || h.State != datapath.SlotDiscard || &b.halves[h.Twin] != h {
		t.Fatalf("half %+v, %d slots in use", h, b.inUse())
	}
	if err := b.Discard(7, [6]byte{}, tuple, start); !errors.Is(err, contable.ErrExists) {
		t.Errorf("the same again: %v", err)
	}
	if _, err := b.Compose(endOf(7), tuple, masqueraded(1), start); !errors.Is(err, contable.ErrExists) {
		t.Errorf("a Conentry of the same connection: %v", err)
	}
	for second := 1.0; second < 10; second++ {
		h.LeaseFrom++
		h.Packets, h.Bytes = h.Packets+10, h.Bytes+1000
		b.Sweep(after(second))
		if b.LenOf(7) != 1 {
			t.Fatalf("gone after %v s, with a packet dropped each second", second)
		}
	}
	b.Sweep(after(10)) // none since
	b.Sweep(after(11))
	if b.Len() != 0 || b.inUse() != 0 {
		t.Errorf("%d entries and %d slots in use, nothing being dropped any more", b.Len(), b.inUse())
	}
	if got, want := b.Discarded(), (contable.Discarded{Packets: 90, Bytes: 9000}); got != want {
		t.Errorf("discarded %+v, want %+v", got, want)
	}
}

// A discard of which no packet is seen dropped, or which a program has closed,
// makes room for a Conentry.
func TestDiscardYields(t *testing.T) {
	for name, end := range map[string]func(*datapath.Half){
		"never dropped": func(*datapath.Half) {},
		"closed":        func(h *datapath.Half) { h.State = datapath.SlotClosed; h.LeaseFrom++ },
	} {
		b := newBed(t, options())
		tuple := masqueraded(1).Orig
		if err := b.Discard(7, [6]byte{}, tuple, start); err != nil {
			t.Fatal(err)
		}
		end(b.half(tuple, 7))
		b.Sweep(after(2))
		b.Sweep(after(3))
		b.compose(7, masqueraded(1), true, after(3))
		if b.Len() != 1 || b.inUse() != 2 {
			t.Errorf("%s: %d entries, %d slots in use", name, b.Len(), b.inUse())
		}
	}
}

// Discards count towards the container's share, and go with its port.
func TestDiscardsShare(t *testing.T) {
	o := options()
	o.PerContainer = 2
	b := newBed(t, o)
	for i := range 3 {
		err := b.Discard(7, [6]byte{}, masqueraded(i).Orig, start)
		if want := i == 2; errors.Is(err, contable.ErrShare) != want {
			t.Errorf("discard %d: %v", i, err)
		}
	}
	b.ForgetPort(7)
	b.Release()
	if b.Len() != 0 || b.inUse() != 0 {
		t.Errorf("%d entries, %d slots in use without the port", b.Len(), b.inUse())
	}
}

// A discard of an earlier daemon is not taken over: its rules may be others.
func TestDiscardIsNotAdopted(t *testing.T) {
	b := newBed(t, options())
	if err := b.Discard(7, [6]byte{}, masqueraded(1).Orig, start); err != nil {
		t.Fatal(err)
	}
	b.restart()
	kept := b.Adopt(anyPort, tracked(masqueraded(1)), start)
	if kept != 0 || b.inUse() != 0 {
		t.Errorf("kept %d, %d slots in use", kept, b.inUse())
	}
}
