package contable_test

import (
	"testing"

	"github.com/scon-project/scon/internal/contable"
)

// due is what a call of Due says of one connection.
type due struct{ told, silent, acknowledged bool }

func (b *bed) due(second float64) (d due) {
	b.Sweep(after(second))
	b.Due(after(second), func(_ *contable.Conentry, isSilent, acknowledged bool) {
		d = due{true, isSilent, acknowledged}
	})
	return d
}

// Conntrack is told of a connection that has fallen silent, once for each time,
// and whether all data has arrived.
func TestDueWhenSilent(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	out, in := b.decided(1, 7), b.half(masqueraded(1).Reply, 0)
	in.OutDev = 4
	out.Packets, out.SeqEnd, in.Ack = 10, 5000, 5000
	in.SeqEnd, out.Ack = 0xfffffff0, 0x10 // acknowledged across the wrap
	for _, step := range []struct {
		second float64
		change func()
		want   due
	}{
		{1, func() {}, due{}},
		{2, func() {}, due{true, true, true}},
		{3, func() {}, due{}},
		{4, func() { out.Packets, out.SeqEnd = 11, 6000 }, due{}},
		{5, func() {}, due{true, true, false}},
		{6, func() { in.Packets, in.Ack = 1, 6000 }, due{}},
		{7, func() {}, due{true, true, true}},
		{8, func() {}, due{}},
	} {
		step.change()
		if got := b.due(step.second); got != step.want {
			t.Errorf("at %v s: %+v, want %+v", step.second, got, step.want)
		}
	}
}

// One that never pauses is told of whenever its bytes have doubled, and at
// least once per GiB.
func TestDueOnTheWay(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	out := b.decided(1, 7)
	var last uint64
	second := 0.0
	for last < 8<<30 {
		second++
		out.Packets++
		out.Bytes += 48 << 10
		if got := b.due(second); !got.told {
			out.Bytes += out.Bytes / 8
			continue
		} else if got.silent {
			t.Fatal("silent with packets each second")
		}
		if far := out.Bytes - last; far > 3*max(last, 64<<10) || far > 5<<28+1<<30 {
			t.Errorf("told at %d bytes, and then not before %d", last, out.Bytes)
		}
		last = out.Bytes
	}
}

// Conntrack has no sequence numbers of UDP.
func TestDueIsOfTCP(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, published(1), false, start)
	b.half(published(1).Reply, 7).OutDev = 3
	b.half(published(1).Reply, 7).Bytes = 1 << 40
	for second := range 5 {
		if got := b.due(float64(second)); got.told {
			t.Errorf("%+v", got)
		}
	}
}
