package datapath_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// The programs find a half in every place where the daemon may put it.
func TestEveryPlace(t *testing.T) {
	b := newBed(t)
	b.Settings().Seed = 1 // one with which no two buckets are the same
	f := masqueraded(tcp)
	for _, dir := range []struct {
		direction direction
		port      int
	}{{f.out, b.port}, {f.in, 0}} {
		seen := make(map[*uint32]bool)
		for n := range 2 * len(datapath.Bucket{}.Places) {
			b.compose(f)
			place := b.placeOf(b.half(dir.direction.enter, dir.port))
			b.decide(dir.direction)
			b.goesExpress(dir.direction)
			if seen[place] {
				t.Fatalf("%s: a place was taken twice, at last as number %d", dir.direction.start, n)
			}
			seen[place] = true
			b.table.Clear()
			for taken := range seen {
				*taken = 2<<datapath.SlotBits | 99 // by a slot that is being filled
			}
		}
		if _, err := b.table.Compose(b.end(), f.tuple, f.conn, time.Now()); !errors.Is(err, contable.ErrFull) {
			t.Fatalf("%s: one more place: %v", dir.direction.start, err)
		}
		b.table.Clear()
	}
}

// placeOf returns the place of a half.
func (b *bed) placeOf(h *datapath.Half) *uint32 {
	b.t.Helper()
	for i := range b.Memory().Buckets {
		for j := range b.Memory().Buckets[i].Places {
			p := &b.Memory().Buckets[i].Places[j]
			if *p>>datapath.SlotBits&1 == 1 && &b.Memory().Halves[0][*p&(1<<datapath.SlotBits-1)] == h {
				return p
			}
		}
	}
	b.t.Fatal("the half has no place")
	return nil
}

// A full table is found through whatever the seed.
func TestManyConnections(t *testing.T) {
	b := newBed(t)
	var all []flow
	for i := range connections {
		f := masqueraded(udp)
		f.conn.Orig.Src = addr(fmt.Sprintf("172.17.0.2:%d", 1000+i))
		f.conn.Reply.Dst = addr(fmt.Sprintf("192.0.2.1:%d", 2000+i))
		f = newFlow(f.conn.Orig, f.conn)
		if e, err := b.table.Compose(b.end(), f.tuple, f.conn, time.Now()); err == nil {
			b.table.SetLease(e, lease)
			all = append(all, f)
			b.regular(f.out)
			b.regular(f.in)
		}
	}
	b.nextTick()
	if len(all) < connections {
		t.Errorf("only %d of %d connections placed", len(all), connections)
	}
	for _, f := range all {
		for _, w := range []direction{f.out, f.in} {
			b.goesExpress(w)
		}
	}
}

// No packet can use the Conentry of another connection: not of another container, not the
// wire, not the other protocol.
func TestForeignPackets(t *testing.T) {
	for family, f := range families(masqueraded(tcp), masqueraded6(tcp)) {
		t.Run(family, func(t *testing.T) { foreignPackets(t, f) })
	}
}

func foreignPackets(t *testing.T, f flow) {
	b := newBed(t)
	other := addPair(t, b.ns, "port2", "inside2")
	if err := b.Track(other, datapath.Delivery{}); err != nil {
		t.Fatal(err)
	}
	b.express(f)
	asUDP := func(f frame) frame { f.proto = udp; return f }
	for name, c := range map[string]struct {
		hook  datapath.Hook
		frame frame
		dev   int
	}{
		"another container sends as this one": {datapath.FromContainer, f.out.enter, other},
		"the wire sends as the container":     {datapath.FromWire, f.out.enter, b.wire},
		"the container sends as the wire":     {datapath.FromContainer, f.in.enter, b.port},
		"the container speaks UDP":            {datapath.FromContainer, asUDP(f.out.enter), b.port},
		"the wire speaks UDP":                 {datapath.FromWire, asUDP(f.in.enter), b.wire},
		"another container is delivered to":   {datapath.ToContainer, f.in.leave, other},
	} {
		r := b.run(c.hook, c.frame.bytes(), skb{Ifindex: uint32(c.dev)})
		if r.verdict != unspec || r.reason != "no_entry" {
			t.Errorf("%s: verdict %d, reason %q", name, r.verdict, r.reason)
		}
	}
	b.goesExpress(f.out)
	b.goesExpress(f.in)
}

// The key of an empty slot is no connection's, although a packet may have it.
func TestKeyOfZeroes(t *testing.T) {
	b := newBed(t)
	zero := masqueraded(tcp).in.enter
	zero.src, zero.dst, zero.flags = addr("0.0.0.0:0"), addr("0.0.0.0:0"), flagSYN
	for range 4 {
		if r := b.run(datapath.FromWire, zero.bytes(), skb{}); r.verdict != unspec || r.reason != "no_entry" {
			t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
		}
	}
	for i, h := range b.Memory().Halves[0] {
		if h != (datapath.Half{}) {
			t.Fatalf("slot %d has become %+v", i, h)
		}
	}
}

// Who has the digest of a connection's addresses and not these themselves does
// not get its Conentry.
func TestDigestIsNotEnough(t *testing.T) {
	f := masqueraded6(udp)
	b := newBed(t)
	b.express(f)
	for _, dir := range []struct {
		direction direction
		port      int
	}{{f.out, b.port}, {f.in, 0}} {
		for i := range 4 {
			h := b.half(dir.direction.enter, dir.port)
			h.Addrs6[i] ^= 1 << 40
			b.goesRegular(dir.direction, "no_entry")
			h.Addrs6[i] ^= 1 << 40
			b.goesExpress(dir.direction)
		}
	}
}
