package contable_test

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
)

// decide records a decision about packets of a half, which leave to a MAC address that
// ends with last, and come from one that ends with 100 more.
func (b *bed) decide(h *datapath.Half, last byte) {
	h.OutDev, h.OutMacs = 3, 2|uint64(last)<<40
	h.InMacs, h.InMacsEnd = 2<<48, uint32(last+100)<<24
	h.Generation, h.Tracked = b.settings.Generation, uint64(b.settings.Generation)<<32|77
}

func macOf(last byte) changes.MAC { return changes.MAC{2, 0, 0, 0, 0, last} }

// A change withdraws the decisions in its scope, and those only.
func TestMakeStale(t *testing.T) {
	between := conntrack.Conn{ID: 3,
		Orig:  conntrack.Tuple{Proto: udp, Src: at("172.17.0.2", 5000), Dst: at("172.17.0.3", 53)},
		Reply: conntrack.Tuple{Proto: udp, Src: at("172.17.0.3", 53), Dst: at("172.17.0.2", 5000)},
	}
	halves := []struct {
		name  string
		tuple conntrack.Tuple
		port  int
	}{
		{"out7", masqueraded(1).Orig, 7}, {"in7", masqueraded(1).Reply, 0},
		{"out8", published(2).Reply, 8}, {"in8", published(2).Orig, 0},
		{"7to8", between.Orig, 7}, {"8to7", between.Reply, 8},
	}
	for name, c := range map[string]struct {
		scope changes.Scope
		stale []string
		all   bool
	}{
		"everything":                  {all: true},
		"a port":                      {scope: changes.Scope{Ports: [2]int{8}}, stale: []string{"out8", "in8", "7to8", "8to7"}},
		"a port without connections":  {scope: changes.Scope{Ports: [2]int{9}}},
		"a device that is no port":    {scope: changes.Scope{Ports: [2]int{10}}, all: true},
		"a device without programs":   {scope: changes.Scope{Ports: [2]int{11}}},
		"a port and such a device":    {scope: changes.Scope{Ports: [2]int{11, 8}}, stale: []string{"out8", "in8", "7to8", "8to7"}},
		"a port and no port":          {scope: changes.Scope{Ports: [2]int{9, 10}}, all: true},
		"a MAC address at no port":    {scope: changes.Scope{Ports: [2]int{10}, NextHop: macOf(3)}, stale: []string{"in8"}},
		"one that moves to a port":    {scope: changes.Scope{Ports: [2]int{9, 10}, NextHop: macOf(104)}, stale: []string{"7to8"}},
		"nobody's that leaves a port": {scope: changes.Scope{Ports: [2]int{10, 11}, NextHop: macOf(9)}},
		"a next hop":                  {scope: changes.Scope{NextHop: macOf(3)}, stale: []string{"in8"}},
		"one who sends":               {scope: changes.Scope{NextHop: macOf(104)}, stale: []string{"7to8"}},
		"nobody's next hop":           {scope: changes.Scope{NextHop: macOf(9)}},
		"a network before it":         {scope: changes.Scope{Network: netip.MustParsePrefix("172.17.0.3/32")}, stale: []string{"7to8", "8to7"}},
		"a network after translation": {scope: changes.Scope{Network: netip.MustParsePrefix("192.0.2.0/24")}, stale: []string{"out7", "in7", "out8", "in8"}},
		"another network":             {scope: changes.Scope{Network: netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			o.Hooked = func(ifindex int) bool { return ifindex <= 10 }
			b := newBed(t, o)
			b.AddPort(9)
			b.compose(7, masqueraded(1), true, start)
			b.compose(8, published(2), false, start)
			e := b.compose(7, between, true, start)
			if err := b.Join(e, endOf(8)); err != nil {
				t.Fatal(err)
			}
			for i, h := range halves {
				b.decide(b.half(h.tuple, h.port), byte(i))
			}
			if known := b.MakeStale(c.scope); known == c.all {
				t.Fatalf("known: %v", known)
			}
			for _, h := range halves {
				of := b.half(h.tuple, h.port)
				if want := slices.Contains(c.stale, h.name); !c.all && (of.Generation == 0) != want {
					t.Errorf("%s: generation %d, stale %v", h.name, of.Generation, want)
				}
				// A packet on its way may leave to an address that it has got already.
				mayRecord := uint32(of.Tracked>>32) == b.settings.Generation
				if c.scope.NextHop != (changes.MAC{}) && mayRecord || of.Generation == 0 && mayRecord {
					t.Errorf("%s: a packet that entered before may record", h.name)
				}
			}
		})
	}
}

// Too much work is not begun, and outer headers are not known.
func TestMakeStaleIsBounded(t *testing.T) {
	o := options()
	o.Connections, o.PerContainer = 8192, 8192
	b := newBed(t, o)
	for i := range 4097 {
		c := masqueraded(i % 20000)
		c.Orig.Src, c.ID = at("172.17.0.2", 1024+i), uint32(i)
		c.Reply.Dst = at("192.0.2.1", 1024+i)
		b.grow()
		b.compose(7, c, true, start)
	}
	b.compose(8, published(1), false, start)
	network := changes.Scope{Network: netip.MustParsePrefix("10.0.0.0/8")}
	if b.MakeStale(changes.Scope{Ports: [2]int{7}}) || b.MakeStale(network) {
		t.Error("4097 Conentries were looked at")
	}
	if !b.MakeStale(changes.Scope{Ports: [2]int{8}}) {
		t.Error("a port with one Conentry is not known")
	}
	b.ForgetPort(7)
	if b.MakeStale(changes.Scope{Ports: [2]int{7}}) {
		t.Error("a port that is gone is known")
	}
	if !b.MakeStale(network) {
		t.Error("one Conentry is not looked at")
	}
	b.settings.Tunnels = 1
	if b.MakeStale(network) || b.MakeStale(changes.Scope{NextHop: macOf(1)}) {
		t.Error("outer headers are taken for unconcerned")
	}
	b.settings.Tunnels = 0
	for n := 0; b.MakeStale(network); n++ { // one Conentry a time
		if n > 1e6 {
			t.Fatal("changes are without bound")
		}
	}
}

// Time that the machine gives to others takes nothing from what a second may look at.
func TestMakeStaleOnBusyMachine(t *testing.T) {
	o := options()
	o.Hooked = func(int) bool {
		time.Sleep(100 * time.Millisecond)
		return false
	}
	b := newBed(t, o)
	b.compose(7, masqueraded(1), true, start)
	for range 3 {
		if !b.MakeStale(changes.Scope{Ports: [2]int{7, 9}}) {
			t.Fatal("a change of one port makes every decision stale")
		}
	}
}

// A program that records while a decision is withdrawn is waited for, but not for long.
func TestMakeStaleWhileRecording(t *testing.T) {
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	h := b.half(masqueraded(1).Orig, 7)
	scope := changes.Scope{Ports: [2]int{7}}

	h.Locked = 1
	if b.MakeStale(scope) {
		t.Error("not waited for")
	}
	h.Locked = 0

	// As learn.h records, on another CPU, packets that entered before the change.
	const generation = 1
	for i := range 20000 {
		atomic.StoreUint64(&h.Tracked, generation<<32|77)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if atomic.SwapUint32(&h.Locked, 1) == 0 {
				if atomic.LoadUint64(&h.Tracked) == generation<<32|77 {
					atomic.StoreUint32(&h.Generation, 0)
					atomic.SwapUint32(&h.Generation, generation)
				}
				atomic.SwapUint32(&h.Locked, 0)
			}
		}()
		known := b.MakeStale(scope)
		<-done
		if known && atomic.LoadUint32(&h.Generation) != 0 {
			t.Fatalf("round %d: a packet from before the change has recorded its decision", i)
		}
		time.Sleep(0)
	}
}

// A program that records, after one decision of a connection has been withdrawn and before
// the other, where the bridge sends packets by the other, is not believed.
func TestMakeStaleBetweenHalves(t *testing.T) {
	const asIs = 1 << 6 // bpf/lib/maps.h's PATH_AS_IS
	b := newBed(t, options())
	b.compose(7, masqueraded(1), true, start)
	out, in := b.half(masqueraded(1).Orig, 7), b.half(masqueraded(1).Reply, 0)
	const generation = 1
	between := 0
	for i := range 20000 {
		b.decide(out, 1)
		b.decide(in, 101)
		out.InMacs, out.InMacsEnd, in.InMacs, in.InMacsEnd = 0, 0, out.OutMacs<<48, uint32(out.OutMacs>>16)
		out.Flags = 0
		in.Locked = 1 // a program records into it, so that MakeStale waits
		done := make(chan bool)
		go func() { // as learn.h and bridged.h, of packets that enter after the change
			for range 1000 {
				if atomic.LoadUint32(&out.Generation) == 0 && atomic.SwapUint32(&out.Locked, 1) == 0 {
					atomic.StoreUint32(&out.Generation, generation)
					out.Flags |= asIs
					atomic.SwapUint32(&out.Locked, 0)
					break
				}
			}
			learnt := out.Flags&asIs != 0 && atomic.LoadUint32(&in.Generation) != 0
			atomic.SwapUint32(&in.Locked, 0)
			done <- learnt
		}()
		known := b.MakeStale(changes.Scope{NextHop: macOf(1)})
		if <-done {
			between++
		}
		if known && out.Generation != 0 && out.Flags&asIs != 0 {
			t.Fatalf("round %d: a program knows where packets go by a decision that is withdrawn", i)
		}
		time.Sleep(0)
	}
	t.Logf("%d times a program recorded between two halves", between)
}

// Any goroutine may make decisions stale while Conentries and discards come and go.
func TestMakeStaleConcurrently(t *testing.T) {
	b := newBed(t, options())
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			default:
				b.MakeStale(changes.Scope{Ports: [2]int{7, 8}})
				b.MakeStale(changes.Scope{Network: netip.MustParsePrefix("192.0.2.0/24")})
			}
		}
	}()
	now := start
	for i := range 2000 {
		e := b.compose(7, masqueraded(i), true, now)
		if i%2 == 0 {
			if err := b.Join(e, endOf(8)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Discard(8, [6]byte{}, published(i).Reply, now); err != nil {
			t.Fatal(err)
		}
		b.Retire(e)
		b.Discards(func(d *contable.Discard, _ contable.Discarded) { b.RetireDiscard(d) })
		now = now.Add(time.Second)
		b.Release()
	}
	close(end)
	<-done
	if b.Len() != 0 {
		t.Errorf("%d entries are left", b.Len())
	}
}
