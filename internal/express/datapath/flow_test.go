package datapath_test

import (
	"bytes"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
)

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)

var (
	containerMAC = mac{2, 0, 0, 0, 0, 0xc}
	bridgeMAC    = mac{2, 0, 0, 0, 0, 0xb}
	uplinkMAC    = mac{2, 0, 0, 0, 0, 0xa}
	gatewayMAC   = mac{2, 0, 0, 0, 0, 0xe}
)

// direction is one direction of a connection: a packet as it enters, and what the
// regular path makes of it.
type direction struct {
	start, end     datapath.Hook
	enter, leave   frame
	inMark         uint32
	mark, priority uint32
}

// flow is a connection of the container behind the bed's port.
type flow struct {
	tuple   conntrack.Tuple // of the container's packets
	conn    conntrack.Conn
	out, in direction
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// masqueraded is a connection from the container to the outside.
func masqueraded(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("172.17.0.2:40000"), Dst: addr("203.0.113.9:443")}
	reply := conntrack.Tuple{Proto: proto, Src: addr("203.0.113.9:443"), Dst: addr("192.0.2.1:61001")}
	return newFlow(orig, conntrack.Conn{Orig: orig, Reply: reply})
}

// published is one from the outside to a published port of the container.
func published(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("198.51.100.7:33333"), Dst: addr("192.0.2.1:8080")}
	reply := conntrack.Tuple{Proto: proto, Src: addr("172.17.0.2:80"), Dst: addr("198.51.100.7:33333")}
	return newFlow(reply, conntrack.Conn{Orig: orig, Reply: reply})
}

// routed is one without any address translation.
func routed(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("172.17.0.2:40000"), Dst: addr("203.0.113.9:443")}
	return newFlow(orig, conntrack.Conn{Orig: orig, Reply: orig.Reverse()})
}

// The same over IPv6.
func masqueraded6(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("[fd00:17::2]:40000"), Dst: addr("[2001:db8:113::9]:443")}
	reply := conntrack.Tuple{Proto: proto, Src: addr("[2001:db8:113::9]:443"), Dst: addr("[2001:db8::1]:61001")}
	return newFlow(orig, conntrack.Conn{Orig: orig, Reply: reply})
}

func published6(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("[2001:db8:51::7]:33333"), Dst: addr("[2001:db8::1]:8080")}
	reply := conntrack.Tuple{Proto: proto, Src: addr("[fd00:17::2]:80"), Dst: addr("[2001:db8:51::7]:33333")}
	return newFlow(reply, conntrack.Conn{Orig: orig, Reply: reply})
}

func routed6(proto uint8) flow {
	orig := conntrack.Tuple{Proto: proto, Src: addr("[2001:db8:17::2]:40000"), Dst: addr("[2001:db8:113::9]:443")}
	return newFlow(orig, conntrack.Conn{Orig: orig, Reply: orig.Reverse()})
}

// families are flows of both, for tests that hold for each.
func families(v4, v6 flow) map[string]flow { return map[string]flow{"IPv4": v4, "IPv6": v6} }

// newFlow makes the four packets of a connection: as they enter and leave, out
// of the container and into it.
func newFlow(container conntrack.Tuple, conn conntrack.Conn) flow {
	wire := conn.Reply
	if container == conn.Reply {
		wire = conn.Orig
	}
	packet := func(t conntrack.Tuple, dst, src mac, ttl uint8) frame {
		return frame{
			dstMAC: dst, srcMAC: src, ttl: ttl, id: 0x1234, frag: 0x4000,
			proto: t.Proto, src: t.Src, dst: t.Dst,
			flags: flagACK, seq: 0x01020304, ack: 0x05060708, payload: []byte("seventeen octets!"),
		}
	}
	return flow{
		tuple: container, conn: conn,
		out: direction{
			start: datapath.FromContainer, end: datapath.ToWire, inMark: 0x60, mark: 0x70, priority: 6,
			enter: packet(container, bridgeMAC, containerMAC, 64),
			leave: packet(wire.Reverse(), gatewayMAC, uplinkMAC, 63),
		},
		in: direction{
			start: datapath.FromWire, end: datapath.ToContainer, inMark: 0x61, mark: 0x71, priority: 4,
			enter: packet(wire, uplinkMAC, gatewayMAC, 55),
			leave: packet(container.Reverse(), containerMAC, bridgeMAC, 54),
		},
	}
}

func (f frame) tuple() conntrack.Tuple {
	return conntrack.Tuple{Proto: f.proto, Src: f.src, Dst: f.dst}
}

// both changes a packet as it enters and as it leaves.
func (w direction) both(change func(*frame)) direction {
	change(&w.enter)
	change(&w.leave)
	return w
}

// end is where the container's packets enter: there is no bridge.
func (b *bed) end() contable.End { return contable.End{Port: b.port, Bridge: b.port} }

// compose places the Conentry, as the daemon would.
func (b *bed) compose(f flow) *contable.Conentry {
	b.t.Helper()
	e := b.place(f)
	b.table.SetLease(e, lease)
	return e
}

// place is compose without a lease.
func (b *bed) place(f flow) *contable.Conentry {
	b.t.Helper()
	e, err := b.table.Compose(b.end(), f.tuple, f.conn, time.Now())
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// express composes a connection and shows the programs both decisions.
func (b *bed) express(f flow) {
	b.t.Helper()
	b.compose(f)
	b.decide(f.out)
	b.decide(f.in)
}

// decide takes a packet the whole regular path, and waits until what was seen of
// it may be used.
func (b *bed) decide(w direction) {
	b.t.Helper()
	b.regular(w)
	b.nextTick()
}

// regular takes a packet the whole regular path and returns the reasons that
// were counted at both ends of it.
func (b *bed) regular(w direction) (enter, leave string) {
	b.t.Helper()
	return b.enters(w), b.leaves(w)
}

// carry makes the packet that entered last the one that leaves next: the kernel
// keeps a packet's tc_index, the run of a program has 0.
func (b *bed) carry() {
	for i := range b.Memory().Halves[0] {
		if h := &b.Memory().Halves[0][i]; h.State == datapath.SlotOpen {
			h.Tracked &^= 0xffff
		}
	}
}

// enters takes a packet to the start of the regular path.
func (b *bed) enters(w direction) (reason string) {
	b.t.Helper()
	data := w.enter.bytes()
	r := b.run(w.start, data, skb{Mark: w.inMark})
	if r.verdict != unspec || !bytes.Equal(r.data, data) || r.skb.Mark != w.inMark {
		b.t.Fatalf("%s: verdict %d, want the packet to go on untouched", w.start, r.verdict)
	}
	return r.reason
}

// leaves takes a packet to the end of the regular path, and the token that may
// follow it into the container back to SCON.
func (b *bed) leaves(w direction) (reason string) {
	b.t.Helper()
	b.carry()
	data := w.leave.bytes()
	r := b.run(w.end, data, skb{Mark: w.mark, Priority: w.priority})
	if !bytes.Equal(r.data, data) || r.skb.Mark != w.mark || r.skb.Priority != w.priority {
		b.t.Fatalf("%s touched the packet", w.end)
	}
	if r.verdict == redirect && r.skb.CB[0] == cbToken {
		b.returns(r)
	} else if r.verdict != unspec {
		b.t.Fatalf("%s: verdict %d", w.end, r.verdict)
	}
	return r.reason
}

// returns takes a token back to SCON, which drops it.
func (b *bed) returns(token result) {
	b.t.Helper()
	if r := b.run(datapath.FromContainer, token.data, skb{CB: token.skb.CB}); r.verdict != shot || r.reason != "" {
		b.t.Fatalf("from_container: verdict %d, reason %q for a token, want %d", r.verdict, r.reason, shot)
	}
}

// goesExpress checks that a packet goes the express path and becomes just what
// the regular path makes of it.
func (b *bed) goesExpress(w direction) {
	b.t.Helper()
	r := b.run(w.start, w.enter.bytes(), skb{Mark: w.inMark, Priority: 1})
	if r.verdict != redirect {
		b.t.Fatalf("%s: verdict %d, reason %q, want %d", w.start, r.verdict, r.reason, redirect)
	}
	if want := w.leave.bytes(); !bytes.Equal(r.data, want) {
		b.t.Fatalf("%s rewrote the packet to\n%x, want\n%x", w.start, r.data, want)
	}
	want := skb{Mark: w.mark, Priority: w.priority}
	if w.start == datapath.FromContainer {
		want.CB = [5]uint32{cbExpress, cbCheck}
	} else {
		want.Mark, want.Priority = 0, 0 // as after the packet has entered the container
	}
	if r.skb.Mark != want.Mark || r.skb.Priority != want.Priority || r.skb.CB != want.CB {
		b.t.Fatalf("%s: mark %#x, priority %d, cb %x; want %#x, %d, %x", w.start,
			r.skb.Mark, r.skb.Priority, r.skb.CB, want.Mark, want.Priority, want.CB)
	}
	if r.reason != "" {
		b.t.Fatalf("%s counted an express packet as %q", w.start, r.reason)
	}
}

// goesRegular checks that a packet goes on untouched for one reason.
func (b *bed) goesRegular(w direction, reason string) {
	b.t.Helper()
	if got := b.enters(w); got != reason {
		b.t.Fatalf("%s: reason %q, want %q", w.start, got, reason)
	}
}
