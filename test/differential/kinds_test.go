package differential

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"

	bpffeatures "github.com/cilium/ebpf/features"
	"github.com/gopacket/gopacket/layers"
)

// kind is a kind of packet.
type kind struct {
	name   string
	weight int
	make   func(m *maker)
}

// opening packets begin or end connections.
var opening = []kind{
	{"SYN", 0, func(m *maker) {
		f := m.data(0)
		f.tcp.SYN, f.tcp.ACK, f.tcp.Ack = true, false, 0
		f.tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}}}
		m.send(f)
	}},
	{"SYN ACK", 0, func(m *maker) {
		// Without a SYN that has arrived, conntrack would ignore it, and what acknowledges
		// it would be outside of the window.
		if !m.synArrived() {
			return
		}
		f := m.data(0)
		f.tcp.SYN = true
		m.send(f)
	}},
	{"FIN", 0, func(m *maker) {
		f := m.data(0)
		f.tcp.FIN = true
		m.send(f)
	}},
}

// otherWindow packets are INVALID to conntrack unless it is liberal, as SCON
// makes it for express connections (docs/safety.md).
const otherWindow = "other window"

// loneRST is the last packet of its connection: conntrack decides which RST ends a
// connection, and SCON informs conntrack (docs/safety.md).
const loneRST = "lone RST"

// kinds are packets that may be sent at any time.
var kinds = []kind{
	{"data", 60, func(m *maker) { m.send(m.data(1 + m.r.IntN(64))) }},
	{"long", 6, func(m *maker) { m.send(m.data(500 + m.r.IntN(900))) }},
	{"empty", 8, func(m *maker) { m.send(m.data(0)) }},
	{"hops", 6, func(m *maker) {
		f := m.some()
		f.ttl = []uint8{0, 1, 2, 3, 128, 254, 255}[m.r.IntN(7)]
		m.frame(f.bytes())
	}},
	{"DSCP and ECN", 6, func(m *maker) {
		f := m.some()
		f.tos = uint8(m.r.Uint32())
		m.frame(f.bytes())
	}},
	{"ECN", 4, func(m *maker) {
		f := m.data(1 + m.r.IntN(64))
		f.tos = uint8(m.r.IntN(4))
		m.send(f)
	}},
	{"don't fragment", 4, func(m *maker) {
		if m.isIPv6() {
			return
		}
		f := m.data(m.r.IntN(1400))
		f.flags = layers.IPv4DontFragment
		m.send(f)
	}},
	{"reserved flag", 1, func(m *maker) {
		if m.isIPv6() {
			return
		}
		f := m.some()
		f.flags = layers.IPv4EvilBit
		m.frame(f.bytes())
	}},
	{"no checksum", 3, func(m *maker) {
		f := m.data(1 + m.r.IntN(64))
		f.noUDPSums = true
		m.send(f)
	}},
	{"wrong IP checksum", 2, func(m *maker) {
		if m.isIPv6() {
			return
		}
		b := m.some().bytes()
		b[ethLen+10] ^= 1 << m.r.IntN(8)
		m.frame(b)
	}},
	{"wrong header length", 2, func(m *maker) {
		if m.isIPv6() {
			return
		}
		b := m.some().bytes()
		b[ethLen] = b[ethLen]&0xf0 | byte(m.r.IntN(16))
		fixIP(b)
		m.frame(b)
	}},
	{"wrong version", 1, func(m *maker) {
		b := m.some().bytes()
		b[ethLen] = b[ethLen]&0xf | byte(m.r.IntN(16))<<4
		fixIP(b)
		m.frame(b)
	}},
	{"cut", 3, func(m *maker) {
		b := m.some().bytes()
		m.frame(b[:ethLen+m.r.IntN(len(b)-ethLen)])
	}},
	{"padded", 4, func(m *maker) {
		f := m.data(m.r.IntN(30))
		b := append(f.bytes(), m.payload(1+m.r.IntN(60))...)
		m.count(f, m.frame(b))
	}},
	{"IP options", 3, func(m *maker) {
		if m.isIPv6() {
			return
		}
		f := m.some()
		f.options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
		if m.r.IntN(2) == 0 {
			f.options = []layers.IPv4Option{{OptionType: 7, OptionLength: 11, OptionData: []byte{4, 0, 0, 0, 0, 0, 0, 0, 0}}, {OptionType: 0}}
		}
		m.frame(f.bytes())
	}},
	{"ports as IP options", 2, func(m *maker) {
		if m.isIPv6() {
			return
		}
		b := m.some().bytes()
		at := m.l4At()
		b = slices.Insert(b, at, b[at:at+4]...)
		b[ethLen]++
		binary.BigEndian.PutUint16(b[ethLen+2:], uint16(len(b)-ethLen))
		fixIP(b)
		m.frame(b)
	}},
	{"extension header", 5, func(m *maker) {
		if !m.isIPv6() {
			return
		}
		f := m.some()
		f.header = []layers.IPProtocol{layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Destination, layers.IPProtocolIPv6Routing}[m.r.IntN(3)]
		f.extension = []byte{0, 0, 1, 4, 0, 0, 0, 0} // padding; routing with no segments left
		m.frame(f.bytes())
	}},
	{"ports as an extension header", 2, func(m *maker) {
		if !m.isIPv6() {
			return
		}
		f := m.some()
		f.header = layers.IPProtocolIPv6Destination
		f.extension = []byte{0, 0, 1, 4, byte(f.src.Port() >> 8), byte(f.src.Port()), byte(f.dst.Port() >> 8), byte(f.dst.Port())}
		m.frame(f.bytes())
	}},
	{"flow label", 2, func(m *maker) {
		if !m.isIPv6() {
			return
		}
		b := m.data(1 + m.r.IntN(64)).bytes()
		b[ethLen+1] = b[ethLen+1]&0xf0 | byte(m.r.IntN(16))
		m.frame(b)
	}},
	{"fragments", 5, fragments},
	{"tagged", 2, func(m *maker) {
		b := m.some().bytes()
		tag := []byte{0x81, 0, 0, []byte{0, 5}[m.r.IntN(2)]}
		if m.r.IntN(4) == 0 {
			tag[0], tag[1] = 0x88, 0xa8
		}
		m.frame(slices.Insert(b, 12, tag...))
	}},
	{"other destination address", 2, func(m *maker) {
		f := m.some()
		f.dst = netip.AddrPortFrom(m.otherAddr(), f.dst.Port())
		m.frame(f.bytes())
	}},
	{"ICMP error", 5, icmpError},
	{"ICMP echo", 1, func(m *maker) {
		f := m.some()
		f.proto, f.icmp = layers.IPProtocolICMPv4, layers.CreateICMPv4TypeCode(8, 0)
		if m.isIPv6() {
			f.proto, f.icmp6 = layers.IPProtocolICMPv6, layers.CreateICMPv6TypeCode(128, 0)
			f.payload = append([]byte{0, 7, 0, 1}, f.payload...)
		}
		m.frame(f.bytes())
	}},
	{"other protocol", 1, func(m *maker) {
		f := m.some()
		f.proto = layers.IPProtocol(100 + m.r.IntN(100))
		m.frame(f.bytes())
	}},
	{"checksum to be completed", 4, func(m *maker) {
		f := m.data(1 + m.r.IntN(64))
		m.partial(f, offload{})
	}},
	{"segments", 3, func(m *maker) {
		if !m.isTCP() && !takesUDPSegments() {
			return
		}
		f := m.data(1500 + m.r.IntN(2500))
		o := offload{gsoType: gsoUDP, header: uint16(m.l4At() + udpLen), gsoSize: uint16(400 + m.r.IntN(1000))}
		if m.isTCP() {
			o.gsoType, o.header = gsoTCP4, uint16(m.l4At()+tcpLen)
			if m.isIPv6() {
				o.gsoType = gsoTCP6
			}
		}
		m.partial(f, o)
	}},
	{"once more", 4, func(m *maker) {
		if s := m.asSent[m.dir]; s.frame != nil {
			m.frame(slices.Clone(s.frame))
		}
	}},
	{"TCP flags", 4, func(m *maker) {
		if !m.isTCP() {
			return
		}
		b := m.data(0).bytes()
		b[m.l4At()+13] = byte(m.r.Uint32()) &^ 0x07
		if m.r.IntN(3) == 0 {
			b[m.l4At()+13] = 0
		}
		m.fixTCP(b)
		m.frame(b)
	}},
	{"TCP options", 3, func(m *maker) {
		f := m.data(1 + m.r.IntN(64))
		f.tcp.Options = []layers.TCPOption{{OptionType: 1}, {OptionType: 1}, {OptionType: 8, OptionLength: 10, OptionData: m.payload(8)}}
		m.send(f)
	}},
	{otherWindow, 4, func(m *maker) {
		if !m.isTCP() {
			return
		}
		f := m.some()
		f.tcp.Seq += []uint32{1 << 28, 1 << 31, 15 << 28}[m.r.IntN(3)]
		m.frame(f.bytes())
	}},
}

// unsound packets have wrong checksums and are INVALID to conntrack: they are
// not sent where rules count packets or match conntrack's state.
var unsound = []kind{
	{"wrong checksum", 4, func(m *maker) {
		b := m.some().bytes()
		b[m.checksumAt()] ^= 1 << m.r.IntN(8)
		m.frame(b).excuse = wrongChecksum
	}},
	{"wrong total length", 3, func(m *maker) {
		b := m.some().bytes()
		if m.isIPv6() {
			binary.BigEndian.PutUint16(b[ethLen+4:], m.odd(len(b)-ethLen-ip6Len))
		} else {
			binary.BigEndian.PutUint16(b[ethLen+2:], m.odd(len(b)-ethLen))
		}
		fixIP(b)
		m.frame(b).excuse = wrongChecksum
	}},
	{"wrong length in TCP or UDP", 3, func(m *maker) {
		b := m.some().bytes()
		if m.isTCP() {
			b[m.l4At()+12] = byte(m.r.Uint32())
		} else {
			binary.BigEndian.PutUint16(b[m.l4At()+4:], m.odd(len(b)-m.l4At()))
		}
		m.frame(b).excuse = wrongChecksum
	}},
}

// unsettling packets may end connections in conntrack or move a MAC address to
// another port.
var unsettling = []kind{
	{"other destination MAC", 2, func(m *maker) {
		f := m.some()
		f.to = []net.HardwareAddr{{255, 255, 255, 255, 255, 255}, {2, 9, 9, 9, 9, 9}, {1, 0, 0x5e, 0, 0, 1}, nodeMACs[c2]}[m.r.IntN(4)]
		m.frame(f.bytes())
	}},
	{"other source MAC", 2, func(m *maker) {
		f := m.some()
		f.from = net.HardwareAddr{2, 7, 7, 7, 7, 7}
		m.frame(f.bytes())
	}},
	{"other source address", 3, func(m *maker) {
		f := m.some()
		f.src = netip.AddrPortFrom(m.otherAddr(), f.src.Port())
		m.frame(f.bytes())
	}},
	{"imitation", 4, func(m *maker) {
		b := m.some().bytes()
		s := m.frame(b)
		s.node = (s.node + 1 + m.r.IntN(nodes-1)) % nodes
		copy(b, m.nextHop(s.node, edge, netip.Addr{}))
		copy(b[6:], nodeMACs[s.node])
	}},
	{"group", 2, func(m *maker) {
		f := m.some()
		f.dst = netip.AddrPortFrom(netip.AddrFrom4([][4]byte{{224, 0, 0, 251}, {239, 1, 2, 3}, {255, 255, 255, 255}, {172, 17, 255, 255}}[m.r.IntN(4)]), 5353)
		f.to = net.HardwareAddr{1, 0, 0x5e, 0, 0, 0xfb}
		if m.isIPv6() {
			f.dst = netip.AddrPortFrom(netip.MustParseAddr([]string{"ff02::fb", "ff05::1:3", "ff0e::7"}[m.r.IntN(3)]), 5353)
			f.to = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 0xfb}
		}
		m.frame(f.bytes())
	}},
	{"lone SYN", 1, func(m *maker) { m.flagged(func(t *layers.TCP) { t.SYN, t.ACK = true, m.r.IntN(2) == 0 }) }},
	{"lone FIN", 1, func(m *maker) { m.flagged(func(t *layers.TCP) { t.FIN = true }) }},
	{loneRST, 1, func(m *maker) { m.flagged(func(t *layers.TCP) { t.RST, t.ACK = true, m.r.IntN(2) == 0 }) }},
}

// fragments adds a packet in fragments: in order, reversed, or with one
// missing.
func fragments(m *maker) {
	b := m.data(100 + m.r.IntN(1200)).bytes()
	head, rest := b[:m.l4At()], b[m.l4At():]
	var all [][]byte
	size := 8 * (3 + m.r.IntN(len(rest)/8))
	for at := 0; at < len(rest); at += size {
		piece := rest[at:min(at+size, len(rest))]
		if m.isIPv6() {
			all = append(all, m.fragment6(head, piece, at, at+size < len(rest)))
			continue
		}
		f := slices.Concat(head, piece)
		binary.BigEndian.PutUint16(f[ethLen+2:], uint16(ipLen+len(piece)))
		frag := uint16(at / 8)
		if at+size < len(rest) {
			frag |= 0x2000
		}
		binary.BigEndian.PutUint16(f[ethLen+6:], frag)
		fixIP(f)
		all = append(all, f)
	}
	switch m.r.IntN(4) {
	case 0:
		slices.Reverse(all)
	case 1:
		all = slices.Delete(all, 0, 1)
	}
	for _, f := range all {
		m.frame(f)
	}
}

// fragment6 returns a fragment of an IPv6 packet.
func (m *maker) fragment6(head, piece []byte, at int, more bool) []byte {
	header := []byte{byte(m.Proto), 0, byte(at >> 8), byte(at), 0, 0, byte(m.id >> 8), byte(m.id)}
	if more {
		header[3] |= 1
	}
	f := slices.Concat(head, header, piece)
	f[ethLen+6] = byte(layers.IPProtocolIPv6Fragment)
	binary.BigEndian.PutUint16(f[ethLen+4:], uint16(len(f)-ethLen-ip6Len))
	return f
}

// icmpError adds an ICMP error about the latest packet of the other direction,
// from its receiver or a router before it.
func icmpError(m *maker) {
	last := m.last[1-m.dir]
	if last.data == "" {
		return
	}
	v := m.views[m.dir]
	quoted := []byte(last.data)[ethLen:]
	quoted = quoted[:min(len(quoted), m.l4At()-ethLen+8+m.r.IntN(60))]
	f := form{from: v.from, to: v.to, ttl: 64, id: m.id, proto: layers.IPProtocolICMPv4, payload: quoted}
	src, dst := tupleOf([]byte(last.data))
	f.src, f.dst = netip.AddrPortFrom(dst.Addr(), 0), src
	if m.r.IntN(3) == 0 {
		f.src = netip.AddrPortFrom(m.otherAddr(), 0)
	}
	code := []layers.ICMPv4TypeCode{
		layers.CreateICMPv4TypeCode(3, 3), layers.CreateICMPv4TypeCode(3, 1), layers.CreateICMPv4TypeCode(3, 4),
		layers.CreateICMPv4TypeCode(11, 0), layers.CreateICMPv4TypeCode(4, 0), layers.CreateICMPv4TypeCode(12, 0),
		layers.CreateICMPv4TypeCode(5, 1),
	}
	f.icmp = code[m.r.IntN(len(code))]
	if m.isIPv6() {
		code := []layers.ICMPv6TypeCode{
			layers.CreateICMPv6TypeCode(1, 4), layers.CreateICMPv6TypeCode(1, 3), layers.CreateICMPv6TypeCode(1, 1),
			layers.CreateICMPv6TypeCode(3, 0), layers.CreateICMPv6TypeCode(4, 0),
		}
		f.proto, f.icmp6 = layers.IPProtocolICMPv6, code[m.r.IntN(len(code))]
		f.payload = slices.Concat(make([]byte, 4), quoted)
	}
	m.frame(f.bytes()).node = v.node
}

// takesUDPSegments reports whether packet sockets accept UDP GSO packets:
// since Linux 6.2.
var takesUDPSegments = sync.OnceValue(func() bool {
	version, err := bpffeatures.LinuxVersionCode()
	return err != nil || version >= 6<<16|2<<8
})
