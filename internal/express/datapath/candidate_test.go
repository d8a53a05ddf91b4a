package datapath_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A connection becomes a candidate after `admit` packets, those for the
// container included if it is UDP, and again whenever they have doubled.
func TestCandidate(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), published(udp), published6(udp)} {
		b := newBed(t)
		var at []int
		began, counted := time.Now(), 0
		for n := 1; counted < 9*admit; n++ {
			if n%3 == 0 {
				b.leaves(f.in)
			} else {
				b.goesRegular(f.out, "no_entry")
			}
			if n%3 != 0 || f.tuple.Proto == udp {
				counted++
			}
			for _, e := range b.events() {
				tuple, port := contable.TupleOf(e.Key, e.Addrs6)
				if e.Closed || tuple != f.tuple || port != b.port {
					t.Errorf("packet %d: %+v, want a candidate", n, e)
				}
				if waited := e.Waited(); waited > time.Since(began) {
					t.Errorf("packet %d: announced %v ago, before it was sent", n, waited)
				}
				at = append(at, counted)
			}
		}
		if want := []int{admit, 2 * admit, 4 * admit, 8 * admit}; !slices.Equal(at, want) {
			t.Errorf("a candidate after packets %v, want %v", at, want)
		}
	}
}

// Events that are there are read together, at most so many at a time, and one alone waits
// for no other.
func TestReadEvents(t *testing.T) {
	b := newBed(t)
	f := masqueraded(tcp)
	for range 8 * admit { // announced after admit, 2, 4 and 8 times as many
		b.goesRegular(f.out, "no_entry")
	}
	var got []int
	for range 2 {
		events, err := b.ReadEvents(3)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, len(events))
	}
	if !slices.Equal(got, []int{3, 1}) {
		t.Errorf("read %v events, want 3 and 1", got)
	}
}

// A slow connection becomes a candidate with fewer packets than `admit`, once it is
// old enough, and a few times again.
func TestSlowCandidate(t *testing.T) {
	b := newBedWith(t, func(o *datapath.Options) { o.Admit = 1000 })
	f := masqueraded(tcp)
	var at []int
	for n := 1; n <= 40; n++ {
		if n == 10 { // as old as that, however long the first ones took
			b.ageCandidates(time.Minute)
		}
		b.goesRegular(f.out, "no_entry")
		for range b.events() {
			at = append(at, n)
		}
	}
	// On a slow machine it may be old before.
	if i := slices.Index(at, 10); i < 0 || !slices.Equal(at[i:], []int{10, 11, 12, 13, 14, 15}) {
		t.Errorf("a candidate at packets %v, want 10 to 15", at)
	}
	b.goesRegular(f.out.both(func(f *frame) { f.flags = flagSYN }), "tcp_syn_fin_rst")
	for range 2 {
		b.goesRegular(f.out, "no_entry")
	}
	if events := b.events(); len(events) != 0 {
		t.Errorf("a connection with two packets is one: %+v", events)
	}
}

// Packets of a connection that a rule keeps regular are counted so, in both directions and
// as often as they are announced, until it begins anew; those of others are not.
func TestJudgedCandidate(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), published(udp), masqueraded6(tcp), published6(udp)} {
		b := newBed(t)
		other := f.out.both(func(f *frame) { f.src = netip.AddrPortFrom(f.src.Addr(), f.src.Port()+1) })
		b.goesRegular(f.out, "no_entry")
		b.table.Judged(f.tuple, b.port)
		if err := b.SetKept(b.port, datapath.Kept{Judged: true}); err != nil {
			t.Fatal(err)
		}
		announced := 0
		for range 2 * admit {
			b.goesRegular(f.out, "per_packet_rule")
			if got := b.leaves(f.in); got != "per_packet_rule" {
				t.Errorf("to the container: reason %q", got)
			}
			b.goesRegular(other, "no_entry")
			for _, e := range b.events() {
				if tuple, _ := contable.TupleOf(e.Key, e.Addrs6); tuple == f.tuple {
					announced++
				}
			}
		}
		if announced == 0 {
			t.Error("it is never announced again")
		}
		if f.tuple.Proto == tcp {
			b.goesRegular(f.out.both(func(f *frame) { f.flags = flagSYN }), "tcp_syn_fin_rst")
			b.goesRegular(f.out, "no_entry")
		}
		b.table.Judged(f.tuple, b.port) // before its first packet, too
		b.goesRegular(f.out, "per_packet_rule")
	}
}

// Packets of a paused container are counted so, in both directions, whatever becomes of its
// port's delivery; of the container alone, or of all.
func TestPausedCandidate(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded6(udp)} {
		b := newBed(t)
		want := func(reason string) {
			t.Helper()
			b.goesRegular(f.out, reason)
			if got := b.leaves(f.in); got != reason {
				t.Errorf("to the container: reason %q, want %q", got, reason)
			}
		}
		want("no_entry")
		for _, step := range []struct {
			kept   datapath.Kept
			all    uint32
			reason string
		}{
			{datapath.Kept{Paused: true}, 0, "paused"},
			{datapath.Kept{Paused: true, Judged: true}, 0, "paused"},
			{datapath.Kept{}, 0, "no_entry"},
			{datapath.Kept{}, 1, "paused"},
			{datapath.Kept{}, 0, "no_entry"},
		} {
			b.Settings().Paused = step.all
			if err := b.SetKept(b.port, step.kept); err != nil {
				t.Fatal(err)
			}
			want(step.reason)
			for _, how := range []datapath.Delivery{{Queue: true}, {}} {
				if err := b.Track(b.port, how); err != nil {
					t.Fatal(err)
				}
				want(step.reason)
			}
		}
		b.Settings().Paused = 1
		b.goesRegular(f.in, "paused")
	}
}

// ageCandidates makes all candidates older.
func (b *bed) ageCandidates(age time.Duration) {
	units := uint64(age/b.Tick()) >> datapath.AgeShift(b.Tick())
	for i, word := range b.Memory().Candidates {
		if word != 0 {
			first := (word>>16 - units) & 0xffff
			b.Memory().Candidates[i] = word&^(0xffff<<16) | first<<16
		}
	}
}

// Packets that begin or end a connection, and those from the wire, of which it
// is not known yet whose they are, make no candidates.
func TestNoCandidate(t *testing.T) {
	b := newBed(t)
	f := masqueraded(tcp)
	for range 4 * admit {
		b.goesRegular(f.out.both(func(f *frame) { f.flags = flagSYN }), "tcp_syn_fin_rst")
		b.goesRegular(f.in, "no_entry")
	}
	if events := b.events(); len(events) != 0 {
		t.Errorf("events %+v", events)
	}
}

// However long a connection has been going regular, it can become a candidate.
func TestCandidateAfterAges(t *testing.T) {
	b := newBed(t)
	f := masqueraded(udp)
	heard := 0
	for range 3 {
		nstest.Do(t, b.ns, func() {
			_, err := b.Program(datapath.FromContainer).Run(&ebpf.RunOptions{
				Data: f.out.enter.bytes(), Context: skb{Ifindex: uint32(b.port)}, Repeat: 1 << 16,
			})
			if err != nil {
				t.Fatal(err)
			}
		})
		if len(b.events()) > 0 {
			heard++
		}
	}
	if heard != 3 {
		t.Errorf("a candidate in %d of three times 65536 packets", heard)
	}
}

// A large table has as many places for connections that are counted: with too few, new
// connections keep each other from being counted.
func TestCandidatePlaces(t *testing.T) {
	for _, c := range []struct{ connections, places uint32 }{{connections, 1 << 16}, {1 << 18, 1 << 18}} {
		b := newBedWith(t, func(o *datapath.Options) { o.Connections = c.connections })
		const flows = 64
		f := masqueraded(tcp)
		for i := range flows {
			b.goesRegular(f.out.both(func(f *frame) { f.src = netip.AddrPortFrom(f.src.Addr(), uint16(10_000+i)) }), "no_entry")
		}
		places := b.Memory().Candidates
		used, high := 0, 0
		for i, word := range places {
			if word != 0 {
				used++
				if i >= 1<<16 {
					high++
				}
			}
		}
		if len(places) != int(c.places) || used < flows-2 || (high > flows/2) != (c.places > 1<<16) {
			t.Errorf("%d connections: %d places, want %d; %d connections take %d, %d of them behind the first 65,536", c.connections, len(places), c.places, flows, used, high)
		}
	}
}
