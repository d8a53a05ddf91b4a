package contable_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
)

// Totals never fall, whatever happens to the connections they come from, and
// no packet is counted twice.
func TestTotals(t *testing.T) {
	b := newBed(t, options())
	rnd := rand.New(rand.NewPCG(3, 4))
	now := start
	var want contable.Totals
	for i := range 2000 {
		now = now.Add(30 * time.Millisecond)
		port := 7 + rnd.IntN(3)
		switch rnd.IntN(6) {
		case 0, 1:
			if b.Len() < 16 {
				b.compose(port, masqueraded(i), true, now)
			}
		case 2:
			b.All(func(e *contable.Conentry) {
				if e.Conn.ID%7 == uint32(i%7) {
					b.Retire(e, now)
				}
			})
		case 3:
			b.Release(now)
		case 4:
			if i%5 == 0 {
				b.ForgetPort(port, now)
			}
		}
		// Packets of those that are retired may be under way, too.
		for j := range b.halves {
			if h := &b.halves[j]; h.Key.Addrs != 0 {
				h.Packets += 2
				h.Bytes += 100
				want.Packets += 2
				want.Bytes += 100
				if h.Key.Side>>1 != 0 {
					want.SentPackets += 2
					want.SentBytes += 100
				}
			}
		}
		byPort, all := b.Totals()
		if all != want {
			t.Fatalf("step %d: totals %+v, want %+v", i, all, want)
		}
		var sum contable.Totals
		for _, p := range byPort {
			sum.Packets += p.Packets
			sum.Bytes += p.Bytes
			sum.SentPackets += p.SentPackets
			sum.SentBytes += p.SentBytes
		}
		if sum != all {
			t.Fatalf("step %d: the ports sum up to %+v, not %+v", i, sum, all)
		}
	}
}

// The totals of a port that is gone are no longer its own: another device may
// get its index.
func TestForgetPort(t *testing.T) {
	b := newBed(t, options())
	for i, port := range []int{7, 7, 8} {
		b.compose(port, masqueraded(i), true, start)
		b.half(masqueraded(i).Orig, port).Packets = 10
	}
	b.Retire(b.Lookup(masqueraded(0).Orig), start)
	b.ForgetPort(7, start)
	if b.LenOf(7) != 0 || b.LenOf(8) != 1 {
		t.Errorf("%d and %d Conentries left", b.LenOf(7), b.LenOf(8))
	}
	for range 2 {
		byPort, all := b.Totals()
		if byPort[7].Packets != 0 || byPort[8].Packets != 10 || byPort[0].Packets != 20 || all.Packets != 30 {
			t.Errorf("totals %+v, %+v", byPort, all)
		}
		b.Release(start.Add(time.Second))
	}
}
