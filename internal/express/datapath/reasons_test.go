package datapath_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// A packet that only the regular path can judge goes there, whichever side it
// enters from, and leaves no trace on its connection.
func TestUnfitPackets(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded(udp), masqueraded6(tcp), masqueraded6(udp)} {
		proto, cases := f.tuple.Proto, unfit
		if f.out.enter.isIPv6() {
			cases = unfit6
		}
		b := newBed(t)
		b.express(f)
		for _, c := range cases {
			if c.proto != 0 && c.proto != proto {
				continue
			}
			for _, w := range []direction{f.out, f.in} {
				data := c.damage(w.enter.bytes())
				if r := b.run(w.start, data, skb{Mark: w.inMark}); r.verdict != unspec || r.reason != c.reason || string(r.data) != string(data) {
					t.Errorf("%s, %s, protocol %d: verdict %d, reason %q, packet %x", c.name, w.start, proto, r.verdict, r.reason, r.data)
				}
				data = c.damage(w.leave.bytes())
				r := b.run(w.end, data, skb{Mark: w.mark})
				queued := w.end == datapath.ToContainer && r.verdict == redirect
				if r.verdict != unspec && !queued || string(r.data) != string(data) {
					t.Errorf("%s, %s, protocol %d: verdict %d, packet %x", c.name, w.end, proto, r.verdict, r.data)
				}
				if queued {
					b.returns(r)
				}
				for range 3 { // for now it may be in the container's queue
					b.nextTick()
				}
				b.goesExpress(w)
			}
		}
	}
}

// unfitPacket is one that parse.h refuses.
type unfitPacket struct {
	name, reason string
	proto        uint8 // 0: both
	damage       func([]byte) []byte
}

// unfit6 are those of IPv6.
var unfit6 = []unfitPacket{
	{"IPv6 behind IPv4's type", "ip_options", 0, etherType(0x0800)},
	{"ARP", "not_ip", 0, etherType(0x0806)},
	{"version 4", "malformed", 0, inL3(func(ip []byte) { ip[0] = 0x40 })},
	{"ICMPv6", "not_tcp_udp", 0, inL3(func(ip []byte) { ip[6] = 58 })},
	{"SCTP", "not_tcp_udp", 0, inL3(func(ip []byte) { ip[6] = 132 })},
	{"hop-by-hop options", "ip_options", 0, inL3(func(ip []byte) { ip[6] = 0 })},
	{"routing header", "ip_options", 0, inL3(func(ip []byte) { ip[6] = 43 })},
	{"authentication header", "ip_options", 0, inL3(func(ip []byte) { ip[6] = 51 })},
	{"destination options", "ip_options", 0, inL3(func(ip []byte) { ip[6] = 60 })},
	{"mobility header", "ip_options", 0, inL3(func(ip []byte) { ip[6] = 135 })},
	{"fragment", "fragment", 0, inL3(func(ip []byte) { ip[6] = 44 })},
	{"hop limit 1", "ttl_expires", 0, inL3(func(ip []byte) { ip[7] = 1 })},
	{"hop limit 0", "ttl_expires", 0, inL3(func(ip []byte) { ip[7] = 0 })},
	{"jumbo", "malformed", 0, inL3(func(ip []byte) { ip[4], ip[5] = 0, 0 })},
	{"longer than the frame", "malformed", 0, inL3(func(ip []byte) { ip[5]++ })},
	{"shorter than its headers", "malformed", 0, inL3(func(ip []byte) { ip[4], ip[5] = 0, 7 })},
	{"cut in the ports", "malformed", 0, cut(ethLen + ip6Len + 3)},
	{"cut in the payload", "malformed", 0, cut(ethLen + ip6Len + tcpLen + 1)},
	{"TCP header too short", "malformed", tcp, inL3(func(ip []byte) { ip[ip6Len+12] = 4 << 4 })},
	{"TCP header beyond the packet", "malformed", tcp, inL3(func(ip []byte) { ip[ip6Len+12] = 15 << 4 })},
	{"no flags", "malformed", tcp, inL3(func(ip []byte) { ip[ip6Len+13] = 0 })},
	{"UDP length too short", "malformed", udp, inL3(func(ip []byte) { ip[ip6Len+4], ip[ip6Len+5] = 0, 7 })},
	{"UDP length beyond the packet", "malformed", udp, inL3(func(ip []byte) { ip[ip6Len+5]++ })},
	{"UDP without a checksum", "malformed", udp, inL3(func(ip []byte) { ip[ip6Len+6], ip[ip6Len+7] = 0, 0 })},
}

// unfit are those of IPv4.
var unfit = []unfitPacket{
	{"IPv4 behind IPv6's type", "malformed", 0, etherType(0x86dd)},
	{"ARP", "not_ip", 0, etherType(0x0806)},
	{"a tag inside the frame", "not_ip", 0, etherType(0x8100)},
	{"ICMP", "not_tcp_udp", 0, inIP(func(ip []byte) { ip[9] = 1 })},
	{"SCTP", "not_tcp_udp", 0, inIP(func(ip []byte) { ip[9] = 132 })},
	{"IP options", "ip_options", 0, withOptions},
	{"IP version 6 behind IPv4's type", "ip_options", 0, inIP(func(ip []byte) { ip[0] = 0x65 })},
	{"first fragment", "fragment", 0, inIP(func(ip []byte) { ip[6] = 0x20 })},
	{"last fragment", "fragment", 0, inIP(func(ip []byte) { ip[6], ip[7] = 0, 100 })},
	{"TTL 1", "ttl_expires", 0, inIP(func(ip []byte) { ip[8] = 1 })},
	{"TTL 0", "ttl_expires", 0, inIP(func(ip []byte) { ip[8] = 0 })},
	{"IP checksum", "malformed", 0, inL3(func(ip []byte) { ip[10]++ })},
	{"longer than the frame", "malformed", 0, inIP(func(ip []byte) { setLen(ip, 1) })},
	{"shorter than its headers", "malformed", 0, inIP(func(ip []byte) { binary.BigEndian.PutUint16(ip[2:], 27) })},
	{"shorter than the IP header", "malformed", 0, inIP(func(ip []byte) { binary.BigEndian.PutUint16(ip[2:], 19) })},
	{"cut in the ports", "malformed", 0, cut(ethLen + ipLen + 3)},
	{"cut in the payload", "malformed", 0, cut(ethLen + ipLen + tcpLen + 1)},
	{"cut in the TCP header", "malformed", tcp, shortened(ipLen + 19)},
	{"TCP header too short", "malformed", tcp, inL3(func(ip []byte) { ip[ipLen+12] = 4 << 4 })},
	{"TCP header beyond the packet", "malformed", tcp, inL3(func(ip []byte) { ip[ipLen+12] = 15 << 4 })},
	{"no flags", "malformed", tcp, flags(0)},
	{"PSH without ACK", "malformed", tcp, flags(flagPSH)},
	{"URG without ACK", "malformed", tcp, flags(0x20)},
	{"UDP length too short", "malformed", udp, inL3(func(ip []byte) { ip[ipLen+4], ip[ipLen+5] = 0, 7 })},
	{"UDP length beyond the packet", "malformed", udp, inL3(func(ip []byte) { ip[ipLen+5]++ })},
}

// inL3 changes something from the IP header on; inIP mends the header's
// checksum afterwards.
func inL3(change func(ip []byte)) func([]byte) []byte {
	return func(b []byte) []byte { change(b[ethLen:]); return b }
}

func inIP(change func(ip []byte)) func([]byte) []byte {
	return func(b []byte) []byte { change(b[ethLen:]); fixIP(b); return b }
}

func setLen(ip []byte, more int) {
	binary.BigEndian.PutUint16(ip[2:], uint16(int(binary.BigEndian.Uint16(ip[2:]))+more))
}

func etherType(t uint16) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint16(b[12:], t); return b }
}

func flags(f uint8) func([]byte) []byte {
	return inL3(func(ip []byte) { ip[ipLen+13] = f })
}

func cut(n int) func([]byte) []byte {
	return func(b []byte) []byte { return b[:n] }
}

// shortened is a packet of n bytes that says so.
func shortened(n int) func([]byte) []byte {
	return func(b []byte) []byte {
		binary.BigEndian.PutUint16(b[ethLen+2:], uint16(n))
		fixIP(b)
		return b[:ethLen+n]
	}
}

func withOptions(b []byte) []byte {
	b = slices.Insert(b, ethLen+ipLen, 1, 1, 1, 0)
	b[ethLen] = 0x46
	setLen(b[ethLen:], 4)
	fixIP(b)
	return b
}

// A packet of a connection that is on the express path goes regular if what was
// decided does not hold for it, or no longer.
func TestUnfitMoments(t *testing.T) {
	for _, c := range moments {
		for _, dir := range []string{"out", "in"} {
			t.Run(c.name+"/"+dir, func(t *testing.T) {
				b := newBed(t)
				for family, f := range families(masqueraded(tcp), masqueraded6(tcp)) {
					b.Settings().Paused = 0
					b.express(f)
					w, port := f.out, b.port
					if dir == "in" {
						w, port = f.in, 0
					}
					b.goesExpress(w)
					change := &moment{bed: b, direction: w, half: b.half(w.enter, port), skb: skb{Mark: w.inMark}}
					c.change(change)
					data := change.direction.enter.bytes()
					r := b.runSilent(w.start, data, change.skb)
					if r.reason != c.reason || r.verdict != unspec || string(r.data) != string(data) {
						t.Fatalf("%s: verdict %d, reason %q, want %q and an untouched packet", family, r.verdict, r.reason, c.reason)
					}
				}
			})
		}
	}
}

// moment is what a case of TestUnfitMoments can change before its packet
// enters.
type moment struct {
	bed       *bed
	direction direction
	half      *datapath.Half
	skb       skb
}

var moments = []struct {
	name, reason string
	change       func(*moment)
}{
	{"lease ended by time", "lease_ended", func(m *moment) { m.half.LeaseFrom -= uint32(10 * time.Minute / m.bed.Tick()) }},
	{"lease ended by packets", "lease_ended", func(m *moment) {
		for range leasePackets - 1 {
			m.bed.goesExpress(m.direction)
		}
	}},
	{"lease of the next jiffy", "lease_ended", func(m *moment) { m.half.LeaseFrom = m.bed.jiffies() + 1000 }},
	{"new generation", "new_generation", func(m *moment) { m.bed.Settings().Generation++ }},
	{"no heartbeat", "inert", func(m *moment) { m.bed.stop() }},
	{"dead until the low half of jiffies is the same", "inert", func(m *moment) { m.bed.jiffies(); m.bed.Settings().Heartbeat -= 1 << 32 }},
	{"paused", "paused", func(m *moment) { m.bed.Settings().Paused = 1; m.bed.stop() }},
	{"paused, new generation", "paused", func(m *moment) { m.bed.Settings().Paused = 1; m.bed.Settings().Generation++ }},
	{"paused, no decision", "paused", func(m *moment) { m.bed.Settings().Paused = 1; m.half.Generation, m.half.OutDev = 0, 0 }},
	{"paused, lease ended", "paused", func(m *moment) {
		m.bed.Settings().Paused = 1
		m.half.LeaseFrom -= uint32(10 * time.Minute / m.bed.Tick())
	}},
	{"no decision", "composing", func(m *moment) { m.half.Generation, m.half.OutDev = 0, 0 }},
	{"closed", "closed", func(m *moment) { m.half.Generation, m.half.State = 0, datapath.SlotClosed }},
	{"other destination MAC", "identity", func(m *moment) { m.direction.enter.dstMAC[0] ^= 1 }},
	{"other source MAC", "identity", func(m *moment) { m.direction.enter.srcMAC[5] ^= 1 }},
	{"other mark", "identity", func(m *moment) { m.skb.Mark++ }},
	{"other DSCP", "identity", func(m *moment) { m.direction.enter.tos = 0xb8 }},
	{"too long", "too_long", func(m *moment) { m.direction.enter.payload = append(m.direction.enter.payload, 0) }},
	{"segments too long", "too_long", func(m *moment) {
		m.skb.GSOSize, m.skb.GSOSegs = uint32(len(m.direction.enter.payload)+1), 2
		m.direction.enter.payload = append(m.direction.enter.payload, m.direction.enter.payload...)
	}},
	{"SYN", "tcp_syn_fin_rst", func(m *moment) { m.direction.enter.flags = flagSYN }},
	{"FIN", "tcp_syn_fin_rst", func(m *moment) { m.direction.enter.flags = flagFIN | flagACK }},
	{"RST", "tcp_syn_fin_rst", func(m *moment) { m.direction.enter.flags = flagRST }},
	{"other port", "no_entry", func(m *moment) {
		m.direction.enter.src = netip.AddrPortFrom(m.direction.enter.src.Addr(), 40001)
	}},
	{"other address", "no_entry", func(m *moment) {
		m.direction.enter.src = netip.AddrPortFrom(m.direction.enter.src.Addr().Next(), m.direction.enter.src.Port())
	}},
}

// stop takes the heartbeat back, as a daemon that ends does.
func (b *bed) stop() {
	b.jiffies()
	b.Settings().Heartbeat -= uint64(time.Second / b.Tick())
}

// Every reason is in one of the tables, or has a test of its own.
func TestEveryReasonIsTested(t *testing.T) {
	tested := map[string]bool{
		"vlan_tag": true, "untied": true,
		"per_packet_rule": true,
		"ipsec":           true, // test/pitfalls: it takes a kernel that decrypts
	}
	for _, c := range unfit {
		tested[c.reason] = true
	}
	for _, c := range moments {
		tested[c.reason] = true
	}
	for _, reason := range datapath.Reasons() {
		if !tested[reason] {
			t.Errorf("no test for reason %q", reason)
		}
	}
}
