package datapath_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
)

// delivery is how a packet for the container was delivered.
type delivery string

const (
	peer     delivery = "straight into the container"
	queue    delivery = "through the port's queue"
	followed delivery = "through the port's queue, with a token behind it"
	left     delivery = "as the regular path does"
)

// deliver runs a hook on a packet for the container, and receives what was
// delivered through the queue at its other end, which must be w's packet.
func (b *bed) deliver(h datapath.Hook, w direction, inside device) (delivery, result) {
	b.t.Helper()
	data, ctx := w.enter.bytes(), skb{Mark: w.inMark}
	if h == datapath.ToContainer {
		b.carry()
		data, ctx = w.leave.bytes(), skb{Mark: w.mark, Priority: w.priority}
	}
	r := b.run(h, data, ctx)
	switch {
	case r.verdict == unspec:
		return left, r
	case r.verdict != redirect || r.skb.CB != [5]uint32{} && r.skb.CB[1] != cbCheck:
		b.t.Fatalf("%s: verdict %d, cb %x", h, r.verdict, r.skb.CB)
	case !bytes.Equal(r.data, w.leave.bytes()):
		b.t.Fatalf("%s made\n%x of the packet, want\n%x", h, r.data, w.leave.bytes())
	case r.skb.CB[0] == cbExpress:
		return queue, r
	case r.skb.CB[0] == cbToken:
		if got := inside.receive(); !bytes.Equal(got, r.data) {
			b.t.Fatalf("%s: in front of the token came\n%x, want\n%x", h, got, r.data)
		}
		return followed, r
	}
	return peer, r
}

func (b *bed) wantDelivery(h datapath.Hook, w direction, inside device, want delivery) result {
	b.t.Helper()
	how, r := b.deliver(h, w, inside)
	if how != want {
		b.t.Fatalf("%s delivers %s, want %s", h, how, want)
	}
	return r
}

// A packet for the container that went regular is followed by a token; until
// the last one is back, express packets take the queue, too.
func TestOrderIntoTheContainer(t *testing.T) {
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		t.Run(family, func(t *testing.T) { orderIntoTheContainer(t, f) })
	}
}

func orderIntoTheContainer(t *testing.T, f flow) {
	b := newBed(t)
	b.express(f)
	inside := openDevice(t, b.ns, "inside")
	number := uint16(0)
	next := func() direction {
		number++
		return f.in.both(func(f *frame) { f.id = number })
	}
	b.wantDelivery(datapath.FromWire, next(), inside, peer)

	b.Settings().Generation++
	regular := next()
	b.goesRegular(regular, "new_generation")
	first := b.wantDelivery(datapath.ToContainer, regular, inside, followed)
	second := b.wantDelivery(datapath.FromWire, next(), inside, followed)
	if second.skb.Mark != f.in.mark || second.skb.Priority != f.in.priority {
		t.Errorf("queued with mark %#x, priority %d; want %#x, %d as on the regular path",
			second.skb.Mark, second.skb.Priority, f.in.mark, f.in.priority)
	}
	b.returns(first)
	third := b.wantDelivery(datapath.FromWire, next(), inside, followed)
	b.returns(second)
	b.wantDelivery(datapath.FromWire, next(), inside, followed) // its token is lost
	b.returns(third)
	last := b.wantDelivery(datapath.FromWire, next(), inside, followed)
	b.returns(last)
	b.wantDelivery(datapath.FromWire, next(), inside, peer)
}

// A packet that leaves regularly while nothing may go express needs no token.
func TestNoTokenWithoutLease(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	inside := openDevice(t, b.ns, "inside")
	b.compose(f)
	b.wantDelivery(datapath.ToContainer, f.in, inside, left)
	b.decide(f.in)
	b.goesExpress(f.in)
	b.Settings().Generation++
	b.wantDelivery(datapath.ToContainer, f.in, inside, left)
}

// A port with a qdisc or filters of its own gets every packet through its
// queue, where they see it.
func TestPortWithQdisc(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	inside := openDevice(t, b.ns, "inside")
	if err := b.Track(b.port, datapath.Delivery{Queue: true, MAC: containerMAC}); err != nil {
		t.Fatal(err)
	}
	b.compose(f)
	b.goesRegular(f.in, "composing")
	b.wantDelivery(datapath.ToContainer, f.in, inside, left)
	b.nextTick()
	r := b.wantDelivery(datapath.FromWire, f.in, inside, queue)
	if r.skb.Mark != f.in.mark || r.skb.Priority != f.in.priority {
		t.Errorf("mark %#x, priority %d; want %#x, %d as on the regular path", r.skb.Mark, r.skb.Priority, f.in.mark, f.in.priority)
	}

	// The qdisc goes: a new decision.
	if err := b.Track(b.port, datapath.Delivery{MAC: containerMAC}); err != nil {
		t.Fatal(err)
	}
	b.Settings().Generation++
	b.decide(f.in)
	b.wantDelivery(datapath.FromWire, f.in, inside, peer)
}

// SCON's own packets pass the end of the regular path unseen.
func TestOwnPacketsPass(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.express(f)
	own := skb{CB: [5]uint32{cbExpress, cbCheck}}
	for _, w := range []direction{f.out, f.in} {
		if r := b.run(w.end, w.leave.bytes(), own); r.verdict != unspec || r.reason != "" {
			t.Errorf("%s: verdict %d, reason %q", w.end, r.verdict, r.reason)
		}
		b.goesExpress(w)
	}
}

// Only both words in cb make a token: one may be there by chance.
func TestNoToken(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.express(f)
	for _, cb := range [][5]uint32{{cbToken}, {0, cbCheck}, {cbExpress, cbCheck}} {
		if r := b.run(datapath.FromContainer, f.out.enter.bytes(), skb{Mark: f.out.inMark, CB: cb}); r.verdict != redirect {
			t.Errorf("cb %x: verdict %d", cb, r.verdict)
		}
	}
	beyond := skb{CB: [5]uint32{cbToken, cbCheck, 1 << datapath.SlotBits, 1}}
	if r := b.run(datapath.FromContainer, f.out.enter.bytes(), beyond); r.verdict != shot {
		t.Errorf("a token of no slot: verdict %d", r.verdict)
	}
}

// What the host itself sends is never taken for a container's.
func TestHostsOwnPackets(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.compose(f)
	b.enters(f.out)
	before := b.counters(b.wire)
	data := f.out.leave.bytes()
	r := runProgram(t, b.ns, b.Program(datapath.ToWire), data, skb{Ifindex: uint32(b.wire)})
	if r.verdict != unspec || !bytes.Equal(r.data, data) {
		t.Errorf("verdict %d", r.verdict)
	}
	if after := b.counters(b.wire); after.Packets != before.Packets {
		t.Errorf("followed: %+v", after)
	}
	b.nextTick()
	b.goesRegular(f.out, "composing")
}

// A fragment or a packet with options may be in the list of GRO when others between the same
// hosts arrive: they follow it, until it has left that list for certain. Then they take the
// port's queue, and those of other hosts do at once.
func TestOrderBehindOdd(t *testing.T) {
	others := families(published(udp), published6(udp))
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		for name, odd := range oddPackets(family) {
			t.Run(family+"/"+name, func(t *testing.T) { orderBehindOdd(t, f, others[family], odd) })
		}
	}
}

// oddPackets make packets without a key of others.
func oddPackets(family string) map[string]func([]byte) []byte {
	if family == "IPv6" {
		return map[string]func([]byte) []byte{
			"fragment": func(b []byte) []byte { b[ethLen+6] = unix.IPPROTO_FRAGMENT; return b },
			"options":  func(b []byte) []byte { b[ethLen+6] = unix.IPPROTO_DSTOPTS; return b },
		}
	}
	return map[string]func([]byte) []byte{
		"first fragment": inIP(func(ip []byte) { ip[6] |= 0x20 }),
		"last fragment":  inIP(func(ip []byte) { ip[7] = 100 }),
		"options":        withOptions,
	}
}

func orderBehindOdd(t *testing.T, f, other flow, odd func([]byte) []byte) {
	const list = 8 // the packets of a list (bpf/lib/order.h)
	b := newBed(t)
	b.express(f)
	b.express(other)
	for b.oddPlace(f.in) == b.oddPlace(other.in) { // another seed
		b = newBed(t)
		b.express(f)
		b.express(other)
	}
	inside := openDevice(t, b.ns, "inside")
	enter := func(data []byte) result {
		return b.runAfter(b.liven, datapath.FromWire, data, skb{Mark: f.in.inMark})
	}
	const recentTicks = 2 // bpf/lib/clock.h
	round := func() (ok bool) {
		enter(odd(f.in.enter.bytes()))
		soon := func() bool { return b.jiffies()-b.Settings().LastOdd <= recentTicks }
		r := enter(other.in.enter.bytes())
		if !soon() {
			return false
		}
		if r.verdict != redirect || r.skb.CB[0] != cbToken {
			t.Errorf("one of other hosts: verdict %d, reason %q, cb %x", r.verdict, r.reason, r.skb.CB)
		}
		inside.receive()
		for i := range list + 1 {
			r := enter(f.in.enter.bytes())
			if !soon() {
				return false
			}
			// That of other hosts counts, too.
			if behind := i < list-1; behind && (r.verdict != unspec || r.reason != "lease_ended") ||
				!behind && (r.verdict != redirect || r.skb.CB[0] != cbToken) {
				t.Errorf("packet %d behind it: verdict %d, reason %q, cb %x", i+1, r.verdict, r.reason, r.skb.CB)
			}
		}
		return true
	}
	for !round() { // a test takes longer than the kernel does
	}
	// Once a regular packet has left, the list that it was in has been looked at.
	ended := func() (ok bool) {
		enter(odd(f.in.enter.bytes()))
		if r := enter(f.in.enter.bytes()); r.verdict == unspec {
			b.leaves(f.in)
		}
		r := enter(f.in.enter.bytes())
		ok = b.jiffies()-b.Settings().LastOdd <= recentTicks
		if ok && (r.verdict != redirect || r.skb.CB[0] != cbToken) {
			t.Errorf("after a regular one has left: verdict %d, reason %q, cb %x", r.verdict, r.reason, r.skb.CB)
		}
		return ok
	}
	for !ended() {
	}
	// A packet that is none of those does not hold up others.
	enter(inIP(func(ip []byte) { ip[9] = unix.IPPROTO_GRE })(masqueraded(udp).in.enter.bytes()))
	if r := enter(f.in.enter.bytes()); r.verdict != redirect {
		t.Errorf("behind GRE: verdict %d, reason %q", r.verdict, r.reason)
	}
}

// oddPlace is the place of the hosts of a packet from the wire (bpf/lib/order.h).
func (b *bed) oddPlace(w direction) uint64 {
	h := (b.half(w.enter, 0).Key.Addrs ^ b.Settings().Seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	return (h + uint64(b.wire)) * 0xd6e8feb86659fd93 >> 58
}

// A packet that is not like the others of its connection goes regular, and those behind it
// follow until one has passed the list of GRO.
func TestOrderBehindIdentity(t *testing.T) {
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		t.Run(family, func(t *testing.T) {
			b := newBed(t)
			b.express(f)
			for w, port := range map[*direction]int{&f.out: b.port, &f.in: 0} {
				marked := w.both(func(f *frame) { f.tos ^= 0x20 })
				for range 2 {
					b.goesRegular(marked, "identity")
					b.goesRegular(*w, "lease_ended")
					b.leaves(*w)
					b.goesExpress(*w)
				}
				// Between such packets the lease is renewed, too.
				b.goesRegular(marked, "identity")
				half := b.half(w.enter, port)
				half.LeaseEnd = uint32(half.Packets)
				b.regular(*w)
				b.goesExpress(*w)
			}
		})
	}
}
