package datapath_test

import (
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"

	"github.com/scon-project/scon/internal/express/contable"
)

// flows are connections of every kind.
func flows() map[string]flow {
	return map[string]flow{
		"tcp masqueraded": masqueraded(tcp),
		"udp masqueraded": masqueraded(udp),
		"tcp published":   published(tcp),
		"udp published":   published(udp),
		"tcp routed":      routed(tcp),
		"udp routed":      routed(udp),

		"tcp masqueraded, IPv6": masqueraded6(tcp),
		"udp published, IPv6":   published6(udp),
		"tcp routed, IPv6":      routed6(tcp),
	}
}

// A connection's whole life: candidate, composing, express in both directions, closed.
func TestLife(t *testing.T) {
	for name, f := range flows() {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			for range admit {
				b.goesRegular(f.out, "no_entry")
			}
			candidates := b.events()
			if len(candidates) != 1 || candidates[0].Closed {
				t.Fatalf("events after %d packets: %+v, want one candidate", admit, candidates)
			}
			tuple, port := contable.TupleOf(candidates[0].Key, candidates[0].Addrs6)
			if tuple != f.tuple || port != b.port {
				t.Fatalf("the candidate is %v of port %d, want %v of %d", tuple, port, f.tuple, b.port)
			}

			e := b.compose(f)
			for _, w := range []direction{f.out, f.in} {
				b.goesRegular(w, "composing")
				b.leaves(w)
				b.nextTick()
				b.goesExpress(w)
			}
			b.goesExpress(f.out)
			size := uint64(len(f.out.enter.bytes()) - ethLen)
			want := contable.Totals{Packets: 3, Bytes: 3 * size, SentPackets: 2, SentBytes: 2 * size}
			b.table.Count(0, datapath.PageSlots)
			if _, got := b.table.Totals(); got != want {
				t.Errorf("express totals %+v, want %+v", got, want)
			}

			b.table.Retire(e)
			for _, w := range []direction{f.out, f.in} {
				b.goesRegular(w, "closed")
			}
			b.release()
			for _, w := range []direction{f.out, f.in} {
				b.goesRegular(w, "no_entry")
			}
		})
	}
}
