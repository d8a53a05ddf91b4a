package datapath_test

import (
	"bytes"
	"testing"

	"github.com/scon-project/scon/internal/express/datapath"
)

// netkit runs the program of a netkit container's transmit call on a packet.
func (b *bed) netkit(w direction) result {
	b.t.Helper()
	return b.run(datapath.FromNetkit, w.enter.bytes(), skb{Mark: w.inMark})
}

// wantQueued has a packet take the queue, unchanged, and returns it.
func (b *bed) wantQueued(w direction) result {
	b.t.Helper()
	r := b.netkit(w)
	if !bytes.Equal(r.data, w.enter.bytes()) {
		b.t.Fatalf("packet\n%x, want it as it was\n%x", r.data, w.enter.bytes())
	}
	b.wantNumber(r)
	return r
}

// wantNumber checks a packet that takes the queue.
func (b *bed) wantNumber(r result) {
	b.t.Helper()
	if r.verdict != unspec || r.skb.CB[0] != cbToken || r.skb.CB[1] != cbCheck {
		b.t.Fatalf("verdict %d, cb %x, want it in the queue with a number", r.verdict, r.skb.CB)
	}
}

// wantShort has a packet leave at once.
func (b *bed) wantShort(w direction) {
	b.t.Helper()
	r := b.netkit(w)
	if r.verdict != redirect || !bytes.Equal(r.data, w.leave.bytes()) {
		b.t.Fatalf("verdict %d, packet\n%x, want\n%x", r.verdict, r.data, w.leave.bytes())
	}
	if r.skb.CB[0] != cbExpress || r.skb.Mark != w.mark || r.skb.Priority != w.priority {
		b.t.Errorf("left with cb %x, mark %#x, priority %d", r.skb.CB, r.skb.Mark, r.skb.Priority)
	}
}

// arrives has a packet that took the queue arrive at the port, and returns the
// verdict.
func (b *bed) arrives(w direction, queued result) int {
	b.t.Helper()
	return b.run(datapath.FromContainer, w.enter.bytes(), skb{Mark: w.inMark, CB: queued.skb.CB}).verdict
}

// Packets of a netkit container leave its transmit call, but not before those
// that took the queue.
func TestNetkit(t *testing.T) {
	for family, flows := range map[string][]flow{
		"IPv4": {masqueraded(udp), masqueraded(tcp)}, "IPv6": {masqueraded6(udp), masqueraded6(tcp)},
	} {
		for _, f := range flows {
			t.Run(family, func(t *testing.T) { netkitKeepsOrder(t, f) })
		}
	}
}

func netkitKeepsOrder(t *testing.T, f flow) {
	b := newBed(t)
	w := f.out
	if verdict := b.arrives(w, b.wantQueued(w)); verdict != unspec {
		t.Fatalf("of a connection that is not known: verdict %d", verdict)
	}
	b.express(f)
	b.wantShort(w)

	b.Settings().Generation++
	first := b.wantQueued(w)
	if verdict := b.arrives(w, first); verdict != unspec {
		t.Fatalf("with a new generation: verdict %d", verdict)
	}
	b.leaves(w)
	b.nextTick()
	b.wantShort(w)

	b.Settings().Generation++
	first = b.wantQueued(w)
	b.arrives(w, first)
	second := b.wantQueued(w)
	b.leaves(w)
	b.nextTick()
	b.wantQueued(w) // it could leave, but the second is in the queue; it is lost
	if verdict := b.arrives(w, second); verdict != redirect {
		t.Errorf("the second: verdict %d", verdict)
	}
	fourth := b.wantQueued(w)
	if verdict := b.arrives(w, fourth); verdict != redirect {
		t.Errorf("the fourth: verdict %d", verdict)
	}
	b.wantShort(w)
}

// Behind a packet of whatever kind all take the queue.
func TestNetkitBehindOthers(t *testing.T) {
	f := masqueraded(udp)
	b := newBed(t)
	b.express(f)
	for name, change := range map[string]func(packet []byte){
		"fragment":       func(packet []byte) { packet[14+6] |= 0x20 },
		"other protocol": func(packet []byte) { packet[14+9] = 1 },
		"no IP":          func(packet []byte) { packet[12], packet[13] = 8, 6 },
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.wantShort(f.out)
			packet := f.out.enter.bytes()
			change(packet)
			odd := b.run(datapath.FromNetkit, packet, skb{Mark: f.out.inMark})
			b.wantNumber(odd)
			queued := b.wantQueued(f.out)
			if r := b.run(datapath.FromContainer, packet, skb{Mark: f.out.inMark, CB: odd.skb.CB}); r.verdict != unspec {
				t.Errorf("verdict %d at the port", r.verdict)
			}
			if verdict := b.arrives(f.out, queued); verdict != redirect {
				t.Errorf("what came behind it: verdict %d", verdict)
			}
		})
	}
}

// The number of a packet that another CPU has sent is not noted.
func TestNetkitSteered(t *testing.T) {
	f := masqueraded(udp)
	b := newBed(t)
	b.express(f)
	b.Settings().Generation++
	queued := b.wantQueued(f.out)
	here := queued.skb.CB
	queued.skb.CB[2]++
	b.arrives(f.out, queued)
	b.leaves(f.out)
	b.nextTick()
	b.wantQueued(f.out)
	queued.skb.CB = here
	queued.skb.CB[3]++
	b.arrives(f.out, queued)
	b.wantShort(f.out)
}
