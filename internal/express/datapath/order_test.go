package datapath_test

import (
	"bytes"
	"testing"

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
	if err := b.Track(b.port, datapath.Delivery{Queue: true}); err != nil {
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
	if err := b.Track(b.port, datapath.Delivery{}); err != nil {
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
