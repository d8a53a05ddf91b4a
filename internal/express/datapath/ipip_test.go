package datapath_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
)

// outerIP is what IPIP puts around a packet.
type outerIP struct {
	dstMAC, srcMAC mac
	src, dst       netip.Addr
	tos, ttl       uint8
	id, frag       uint16
}

// Outer headers of the packets between this machine, 10.77.0.1, and the tunnel's other end.
var (
	outerOut = outerIP{dstMAC: gatewayMAC, srcMAC: uplinkMAC, src: netip.MustParseAddr("10.77.0.1"), dst: netip.MustParseAddr("10.77.0.2"), ttl: 63, frag: 0x4000}
	outerIn  = outerIP{dstMAC: uplinkMAC, srcMAC: gatewayMAC, src: netip.MustParseAddr("10.77.0.2"), dst: netip.MustParseAddr("10.77.0.1"), ttl: 63, id: 7, frag: 0x4000}
)

// around encapsulates a frame.
func (o outerIP) around(inner []byte) []byte {
	b := make([]byte, ethLen+ipLen)
	copy(b, o.dstMAC[:])
	copy(b[6:], o.srcMAC[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip := b[ethLen:]
	ip[0], ip[1], ip[8], ip[9] = 0x45, o.tos, o.ttl, unix.IPPROTO_IPIP
	binary.BigEndian.PutUint16(ip[2:], uint16(ipLen+len(inner)-ethLen))
	binary.BigEndian.PutUint16(ip[4:], o.id)
	binary.BigEndian.PutUint16(ip[6:], o.frag)
	copy(ip[12:], o.src.AsSlice())
	copy(ip[16:], o.dst.AsSlice())
	fixIP(b)
	return append(b, inner[ethLen:]...)
}

// tunnelled are a connection's halves whose packets have a tunnel of IPIP beyond the wire,
// and their outer headers.
type tunnelled struct {
	*bed
	flow
	half  map[string]*datapath.Half
	outer map[string]*datapath.Outer
}

// newTunnelled shows the programs the decisions about a connection by a device of IPIP.
func newTunnelled(t *testing.T, f flow) *tunnelled {
	t.Helper()
	b := &tunnelled{bed: newBed(t), flow: f}
	outers, err := b.AddOuters(0)
	if err != nil {
		t.Fatal(err)
	}
	b.Settings().Tunnels = datapath.TunnelIPIP
	b.express(f)
	b.half = map[string]*datapath.Half{"out": b.bed.half(f.out.enter, b.port), "in": b.bed.half(f.in.enter, 0)}
	b.outer = make(map[string]*datapath.Outer)
	for name, h := range b.half {
		i := slices.IndexFunc(b.Memory().Halves[0], func(o datapath.Half) bool { return o.Key == h.Key && o.State == datapath.SlotOpen })
		b.outer[name] = &outers[i]
		h.Flags |= datapath.DevTunnel
	}
	// A device of IPIP has no MAC addresses.
	b.half["out"].OutMacs, b.half["out"].OutMacsEnd = 0, 0
	b.half["in"].InMacs, b.half["in"].InMacsEnd = 0, 0
	return b
}

// atWire runs the program at an end of the wire on what the machine itself sends or receives.
func (b *tunnelled) atWire(h datapath.Hook, data []byte, mark, priority uint32) result {
	b.t.Helper()
	b.liven()
	program, err := b.ProgramAt(h, b.wire)
	if err != nil {
		b.t.Fatal(err)
	}
	before := b.counters(b.wire)
	r := runProgram(b.t, b.ns, program, data, skb{Mark: mark, Priority: priority, Ifindex: uint32(b.wire)})
	r.reason = counted(b.t, before, b.counters(b.wire))
	return r
}

const outerMark, outerPriority = 0x90, 3

// leavesEncapsulated shows the programs the outer headers of the container's packets.
func (b *tunnelled) leavesEncapsulated() {
	b.t.Helper()
	o := b.outer["out"]
	for o.Generation == 0 { // the packet may take too long on a busy machine
		if r := b.run(b.out.start, b.out.enter.bytes(), skb{Mark: b.out.inMark}); r.verdict != redirect || r.reason != "" {
			b.t.Fatalf("verdict %d, reason %q", r.verdict, r.reason)
		}
		o.Tracked &^= 0xffff // as in carry
		b.atWire(datapath.ToWire, outerOut.around(b.out.leave.bytes()), outerMark, outerPriority)
	}
	b.nextTick()
}

// Packets into a tunnel of IPIP leave as its device would send them, if it has sent one like
// them.
func TestIPIPOut(t *testing.T) {
	for name, f := range map[string]flow{"TCP": masqueraded(tcp), "UDP": routed(udp)} {
		t.Run(name, func(t *testing.T) {
			b := newTunnelled(t, f)
			b.leavesEncapsulated()
			sent := func(change func(*frame)) result {
				w := f.out
				change(&w.enter)
				return b.run(w.start, w.enter.bytes(), skb{Mark: w.inMark, Priority: 1})
			}
			for _, ecn := range []uint8{0, 1, 2, 3} {
				r := sent(func(f *frame) { f.tos = ecn })
				want, inner := outerOut, f.out.leave
				inner.tos, want.tos = ecn, ecn
				if ecn == 3 {
					want.tos = 2 // congestion is signalled by the inner header alone
				}
				want.id = binary.BigEndian.Uint16(r.data[ethLen+4:])
				if r.verdict != redirect || r.reason != "" || !bytes.Equal(r.data, want.around(inner.bytes())) {
					t.Fatalf("ECN %d: verdict %d, reason %q, the packet became\n%x, want\n%x", ecn, r.verdict, r.reason, r.data, want.around(inner.bytes()))
				}
				if r.skb.Mark != outerMark || r.skb.Priority != outerPriority || r.skb.CB != [5]uint32{cbExpress, cbCheck} {
					t.Errorf("mark %#x, priority %d, cb %x", r.skb.Mark, r.skb.Priority, r.skb.CB)
				}
			}
			for what, change := range map[string]func(*frame){
				"another TTL": func(f *frame) { f.ttl++ },
				"without DF":  func(f *frame) { f.frag = 0 },
			} {
				w := f.out.both(change)
				if r := sent(change); r.verdict != redirect || !bytes.Equal(r.data[ethLen:], w.leave.bytes()[ethLen:]) {
					t.Errorf("%s: verdict %d, reason %q: the device gets\n%x, want\n%x", what, r.verdict, r.reason, r.data, w.leave.bytes())
				}
			}
			b.outer["out"].Generation++
			if r := sent(func(*frame) {}); len(r.data) != len(f.out.leave.bytes()) {
				t.Error("encapsulated with the headers of another generation")
			}
		})
	}
}

// A device that sends each packet where its route says gets no express packet: what cannot
// skip it goes regular.
func TestIPIPByRoute(t *testing.T) {
	for name, f := range map[string]flow{"TCP": masqueraded(tcp), "UDP": routed(udp)} {
		t.Run(name, func(t *testing.T) {
			b := newTunnelled(t, f)
			b.leavesEncapsulated()
			b.half["out"].Flags |= datapath.DevByRoute
			sent := func(what string, change func(*frame), verdict int, reason string) {
				t.Helper()
				w := f.out
				change(&w.enter)
				if r := b.run(w.start, w.enter.bytes(), skb{Mark: w.inMark, Priority: 1}); r.verdict != verdict || r.reason != reason {
					t.Errorf("%s: verdict %d, reason %q, want %d, %q", what, r.verdict, r.reason, verdict, reason)
				}
			}
			same := func(*frame) {}
			sent("a packet like the one before", same, redirect, "")
			b.outer["out"].Generation++
			sent("of an unknown end", same, unspec, "lease_ended")
			b.outer["out"].Generation--
			sent("like the one before, again", same, redirect, "")
			if name == "TCP" {
				fin := f.out.enter
				fin.flags |= 1
				if b.run(f.out.start, fin.bytes(), skb{Mark: f.out.inMark}).reason != "tcp_syn_fin_rst" {
					t.Error("an end went express")
				}
				return
			}
			sent("of another TTL", func(f *frame) { f.ttl++ }, unspec, "identity")
			sent("that follows it", same, unspec, "lease_ended")
		})
	}
}

// Nothing is recorded at such a device while it cannot be skipped.
func TestIPIPByRouteKept(t *testing.T) {
	for _, kept := range []bool{false, true} {
		b, f := newBed(t), routed(udp)
		if _, err := b.AddOuters(0); err != nil {
			t.Fatal(err)
		}
		if err := b.Track(b.wire, datapath.Delivery{Tunnel: !kept, ByRoute: true}); err != nil {
			t.Fatal(err)
		}
		b.compose(f)
		b.regular(f.out)
		if known := b.half(f.out.enter, b.port).Generation == b.Settings().Generation; known == kept {
			t.Errorf("kept: %v, the decision is known: %v", kept, known)
		}
	}
}

// Packets out of a tunnel of IPIP skip its device, if one with the same outer headers has
// come by it.
func TestIPIPIn(t *testing.T) {
	for name, f := range map[string]flow{"TCP": masqueraded(tcp), "UDP": routed(udp)} {
		t.Run(name, func(t *testing.T) {
			b := newTunnelled(t, f)
			o, inner := b.outer["in"], f.in.enter.bytes()
			arrives := func(data []byte, mark uint32) result { return b.atWire(datapath.FromWire, data, mark, 0) }
			regular := func(what string, data []byte, mark uint32, reason string) {
				t.Helper()
				if r := arrives(data, mark); r.verdict != unspec || r.reason != reason || !bytes.Equal(r.data, data) {
					t.Errorf("%s: verdict %d, reason %q, want %q", what, r.verdict, r.reason, reason)
				}
				o.Probe = 0 // the kernel has decapsulated it
			}
			regular("unknown", outerIn.around(inner), outerMark, "identity")
			if o.ProbeGeneration != b.Settings().Generation {
				t.Fatalf("the outer headers are not noted: %+v", o)
			}
			o.Origin, o.Generation = b.half["in"].InDev, o.ProbeGeneration // it has come by the device
			express := func(what string, data []byte) {
				t.Helper()
				if r := arrives(data, outerMark); r.verdict != redirect || !bytes.Equal(r.data, f.in.leave.bytes()) {
					t.Errorf("%s: verdict %d, reason %q, the packet became\n%x, want\n%x", what, r.verdict, r.reason, r.data, f.in.leave.bytes())
				}
			}
			express("known", outerIn.around(inner))
			for what, change := range map[string]func(*outerIP){
				"another source":      func(o *outerIP) { o.src = netip.MustParseAddr("10.77.0.3") },
				"another destination": func(o *outerIP) { o.dst = netip.MustParseAddr("10.77.0.3") },
				"another MAC address": func(o *outerIP) { o.srcMAC[5]++ },
				"another DSCP":        func(o *outerIP) { o.tos = 0x20 },
				"congestion":          func(o *outerIP) { o.tos = 3 },
			} {
				outer := outerIn
				change(&outer)
				regular(what, outer.around(inner), outerMark, "identity")
			}
			damaged := outerIn.around(inner)
			damaged[ethLen+11]++
			regular("a wrong checksum", damaged, outerMark, "identity")
			regular("padding", append(outerIn.around(inner), 0), outerMark, "identity")
			regular("another mark", outerIn.around(inner), 0, "identity")
			foreign := f.in.enter
			foreign.src = netip.AddrPortFrom(foreign.src.Addr(), 9)
			regular("another connection", outerIn.around(foreign.bytes()), outerMark, "no_entry")
			express("known, still", outerIn.around(inner))
			arrives(outerIn.around(inner), 0)
			if r := arrives(outerIn.around(inner), outerMark); r.verdict != unspec {
				t.Error("a packet overtakes one that the kernel decapsulates")
			}
			o.Probe = 0
			b.Settings().Tunnels = 0
			regular("no device may be skipped", outerIn.around(inner), outerMark, "not_tcp_udp")
		})
	}
}
