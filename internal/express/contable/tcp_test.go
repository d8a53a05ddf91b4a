package contable_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
)

// silence is what a call of Silent says of one connection.
type silence struct{ reported, acknowledged bool }

func (b *bed) silent(second float64) (s silence) {
	b.Silent(0, uint32(len(b.halves)), after(second), func(_ *contable.Conentry, acknowledged bool) {
		s = silence{true, acknowledged}
	})
	b.Sweep(after(second))
	return s
}

// Conntrack is notified of a connection that has fallen silent, once for each time,
// and whether all data has arrived.
func TestSilent(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	out, in := b.decided(1, 7), b.half(masqueraded(1).Reply, 0)
	in.OutDev = 4
	out.Packets, out.SeqEnd, in.Ack = 10, 5000, 5000
	in.SeqEnd, out.Ack = 0xfffffff0, 0x10 // acknowledged across the wrap
	for _, step := range []struct {
		second float64
		change func()
		want   silence
	}{
		{1, func() {}, silence{}},
		{2, func() {}, silence{true, true}},
		{3, func() {}, silence{}},
		{4, func() { out.Packets, out.SeqEnd = 11, 6000 }, silence{}},
		{5, func() {}, silence{true, false}},
		{6, func() { in.Packets, in.Ack = 1, 6000 }, silence{}},
		{7, func() {}, silence{true, true}},
		{8, func() {}, silence{}},
	} {
		step.change()
		if got := b.silent(step.second); got != step.want {
			t.Errorf("at %v s: %+v, want %+v", step.second, got, step.want)
		}
	}
}

// UDP falls silent, too: conntrack counts its timeout from a packet that it has seen.
func TestSilentUDP(t *testing.T) {
	b := newBed(t, options())
	e := b.compose(7, published(1), false, start)
	h := b.half(published(1).Reply, 7)
	h.OutDev, h.Packets, h.LeaseFrom = 3, 10, ^uint32(0)-6999 // there is no packet the other way
	b.settings.Heartbeat = 1 << 33
	reported := 0
	for second := range 5 {
		if b.silent(float64(second)).reported {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("reported %d times", reported)
	}
	// The last packet was seen at 0 s.
	if got := b.Unseen(e, after(4)); got != 3*time.Second {
		t.Errorf("unseen for %v", got)
	}
	other := b.half(published(1).Orig, 0)
	other.OutDev, other.LeaseFrom = 3, ^uint32(0)-5999
	if got := b.Unseen(e, after(4)); got != 2*time.Second {
		t.Errorf("unseen for %v", got)
	}
	h.LeaseFrom = 1 // a decision of the next jiffy
	if got := b.Unseen(e, after(4)); got != 0 {
		t.Errorf("unseen for %v", got)
	}
}
