package datapath_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

// neighbourMAC is that of a machine behind the wire, a port of the container's bridge.
var neighbourMAC = mac{2, 0, 0, 0, 0, 0x9}

// bridged makes a connection one that a bridge forwards: packets leave as they enter.
func bridged(f flow) flow {
	f.out.enter.dstMAC, f.in.enter.dstMAC, f.in.enter.srcMAC = neighbourMAC, containerMAC, neighbourMAC
	f.out.leave, f.in.leave = f.out.enter, f.in.enter
	if f.conn.Translated() { // the bridge lets Netfilter translate
		f.out.leave.src, f.in.leave.dst = f.conn.Reply.Dst, f.conn.Orig.Src
	}
	return f
}

// newBridgedBed is a bed whose wire is a port of the container's bridge.
func newBridgedBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.trackWire(true)
	return b
}

// longest is the length of the longest packet that passes the wire.
const longest = 1504

func (b *bed) trackWire(bridged bool) {
	b.t.Helper()
	if err := b.Track(b.wire, datapath.Delivery{Bridged: bridged, Longest: longest}); err != nil {
		b.t.Fatal(err)
	}
}

// bridgedFlows are such connections.
var bridgedFlows = map[string]flow{
	"TCP": bridged(routed(tcp)), "UDP": bridged(routed(udp)),
	"TCP over IPv6": bridged(routed6(tcp)), "UDP over IPv6": bridged(routed6(udp)),
	"translated": bridged(masqueraded(tcp)), "translated over IPv6": bridged(masqueraded6(udp)),
	"with another DSCP": changed(bridged(routed(udp)), func(f *frame) { f.tos = 0xb8 }),
	"by a rule of the bridge with another MAC address": changed(bridged(routed6(udp)), func(f *frame) { f.srcMAC = uplinkMAC }),
}

// changed makes a connection one whose packets leave changed.
func changed(f flow, change func(*frame)) flow {
	change(&f.out.leave)
	return f
}

// What a bridge forwards by a port that leads out goes express once both directions are
// known, with the MAC addresses and the TTL that it has.
func TestBridgedOut(t *testing.T) {
	for name, f := range bridgedFlows {
		t.Run(name, func(t *testing.T) {
			b := newBridgedBed(t)
			b.compose(f)
			b.decide(f.out)
			b.goesRegular(f.out, "composing")
			b.decide(f.in)
			express := func() {
				t.Helper()
				for range 2 { // by the slow path and, if it leaves as it enters, by the fast one
					b.goesExpress(f.out)
					b.goesExpress(f.in)
				}
			}
			express()

			// A change in the bridge's table withdraws both, and one alone is of no use.
			out, in := b.half(f.out.enter, b.port), b.half(f.in.enter, 0)
			for _, order := range [][2]direction{{f.out, f.in}, {f.in, f.out}} {
				out.Generation, in.Generation = 0, 0
				b.decide(order[0])
				b.goesRegular(order[0], "composing")
				b.decide(order[1])
				express()
			}

			// The leases are renewed.
			out.LeaseFrom -= 1 << 30
			in.LeaseFrom -= 1 << 30
			for _, w := range []direction{f.out, f.in} {
				b.goesRegular(w, "lease_ended")
				b.leaves(w)
			}
			express()
		})
	}
}

// The other direction comes from elsewhere than the packets of one go: the bridge may not
// know where these belong, and sends them by all ports.
func TestBridgedOutFlood(t *testing.T) {
	t.Run("another MAC address", func(t *testing.T) {
		f, b := bridgedFlows["UDP"], newBridgedBed(t)
		f.in.enter.srcMAC[5] ^= 1
		f.in.leave = f.in.enter
		b.express(f)
		b.goesRegular(f.out, "composing")
	})
	t.Run("another port", func(t *testing.T) {
		f, b := bridgedFlows["UDP"], newBridgedBed(t)
		b.express(f)
		out, in := b.half(f.out.enter, b.port), b.half(f.in.enter, 0)
		in.InDev++
		out.LeaseFrom -= 1000
		b.goesRegular(f.out, "composing")
		// The bridge may have sent it by all ports, before the answer: the next one decides anew.
		b.goesRegular(f.out, "new_generation")
		b.leaves(f.out)
		b.nextTick()
		in.InDev--
		b.goesExpress(f.out)
	})
}

// A packet of a decision that is of no use, since nothing comes back, is not tracked: while
// one is, all regular packets that leave are looked at.
func TestBridgedOutUnanswered(t *testing.T) {
	for name, f := range bridgedFlows {
		t.Run(name, func(t *testing.T) {
			b := newBridgedBed(t)
			b.compose(f)
			for _, w := range []direction{f.out, f.in} {
				b.decide(w)
				h := b.half(w.enter, map[datapath.Hook]int{datapath.FromContainer: b.port}[w.start])
				b.goesRegular(w, "composing")
				if h.Probe != 0 {
					t.Errorf("%s: the packet is tracked", w.start)
				}
				h.Generation = 0
			}
		})
	}
}

// What IP sends by the bridge, or receives there, decides nothing at a port of it, and what
// the bridge forwards nothing at another uplink.
func TestBridgedOutIsBridged(t *testing.T) {
	f := bridgedFlows["UDP"]
	b := newBridgedBed(t)
	b.compose(f)
	b.enters(f.out)
	b.carry()
	const bridge = 99
	for _, w := range []direction{f.out, f.in} {
		b.enters(w)
		b.carry()
		if r := b.run(w.end, w.leave.bytes(), skb{IngressIfindex: bridge}); r.verdict != unspec || r.reason != "untied" {
			t.Errorf("%s by IP: verdict %d, reason %q", w.end, r.verdict, r.reason)
		}
	}
}

// Of a connection that IP does not see only what a bridge forwards decides.
func TestBridgedOnly(t *testing.T) {
	f := bridgedFlows["UDP"]
	compose := func(b *bed) {
		e, err := b.table.ComposeUntracked(contable.End{Port: b.port}, f.tuple, time.Now())
		if err != nil || !e.Bridged {
			t.Fatalf("%+v, %v", e, err)
		}
		b.table.SetLease(e, lease)
	}
	b := newBridgedBed(t)
	compose(b)
	b.decide(f.out)
	b.decide(f.in)
	b.goesExpress(f.out)
	b.goesExpress(f.in)

	b = newBed(t)
	compose(b)
	for _, w := range []direction{f.out, f.in} {
		if enter, leave := b.regular(w); leave != "untied" {
			t.Errorf("%s: reasons %q, %q by an uplink of IP", w.end, enter, leave)
		}
	}
}

// A bridge does not remove padding, and forwards a TTL of 1, which an express packet never
// has.
func TestBridgedOutAsItIs(t *testing.T) {
	f := bridgedFlows["UDP"]
	b := newBridgedBed(t)
	b.express(f)
	for _, w := range []direction{f.out, f.in} {
		padded := append(w.enter.bytes(), 0, 0)
		if r := b.run(w.start, padded, skb{Mark: w.inMark}); r.verdict != unspec || r.reason != "too_long" {
			t.Errorf("%s: verdict %d, reason %q for a padded packet", w.start, r.verdict, r.reason)
		}
		w.enter.ttl = 1
		b.goesRegular(w, "ttl_expires")
	}
}

// A bridge passes GSO packets whatever their segments' length, and not so long packets: it is
// not learnt from the former that the latter pass.
func TestBridgedOutSegments(t *testing.T) {
	f := bridgedFlows["UDP"]
	b := newBridgedBed(t)
	b.express(f)
	long := f.out
	long.enter.payload = make([]byte, longest-ipLen-8)
	long.leave = long.enter
	const overlong = longest // with headers
	segments := func(h datapath.Hook, mark, priority uint32) result {
		b.carry()
		return b.run(h, long.enter.bytes(), skb{Mark: mark, Priority: priority, GSOSize: overlong, GSOSegs: 1})
	}
	if r := segments(long.start, long.inMark, 0); r.reason != "too_long" {
		t.Fatalf("verdict %d, reason %q", r.verdict, r.reason)
	}
	if r := segments(long.end, long.mark, long.priority); r.verdict != unspec || r.reason != "too_long" {
		t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
	}
	b.goesRegular(long, "too_long")
	b.leaves(long)
	b.goesExpress(long)
}

// A packet that the bridge floods decides nothing at a port whose container's MAC address is
// not known, and makes no connection a candidate there.
func TestFloodedToUnknown(t *testing.T) {
	f := routed(udp)
	b := newBed(t)
	if err := b.Track(b.port, datapath.Delivery{}); err != nil {
		t.Fatal(err)
	}
	flooded := f.in.leave
	flooded.dstMAC = neighbourMAC
	for range 2 * admit {
		if r := b.run(datapath.ToContainer, flooded.bytes(), skb{}); r.verdict != unspec || r.reason != "no_entry" {
			t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
		}
	}
	if e, ok, err := b.NextEvent(); ok || err != nil {
		t.Errorf("announced: %+v, %v", e, err)
	}
	b.compose(f)
	for _, known := range []bool{false, true} { // whether the container has sent a packet
		if known {
			b.decide(f.out)
			b.decide(f.in)
			b.goesExpress(f.in)
			b.Settings().Generation++
			b.enters(f.out)
		}
		b.enters(f.in)
		b.carry()
		if r := b.run(datapath.ToContainer, flooded.bytes(), skb{Mark: f.in.mark}); r.verdict != unspec || r.reason != "untied" {
			t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
		}
		b.nextTick()
		b.goesRegular(f.in, map[bool]string{false: "composing", true: "new_generation"}[known])
	}
}
