package differential

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Lengths of headers.
const (
	ethLen = 14
	ipLen  = 20
	ip6Len = 40
	udpLen = 8
	tcpLen = 20
)

// isIPv6 reports whether a frame's EtherType is IPv6.
func isIPv6[T string | []byte](b T) bool {
	return len(b) >= ethLen && b[12] == 0x86 && b[13] == 0xdd
}

// l4Of returns the offset of TCP or UDP in a frame without VLAN tag, IP
// options and extension headers.
func l4Of[T string | []byte](b T) int {
	if isIPv6(b) {
		return ethLen + ip6Len
	}
	return ethLen + ipLen
}

// protoOf returns the protocol of a frame that has at least an IPv4 header.
func protoOf[T string | []byte](b T) layers.IPProtocol {
	if isIPv6(b) {
		return layers.IPProtocol(b[ethLen+6])
	}
	return layers.IPProtocol(b[ethLen+9])
}

// addrsOf returns the offset of the IP addresses.
func addrsOf[T string | []byte](b T) int {
	if isIPv6(b) {
		return ethLen + 8
	}
	return ethLen + 12
}

// form holds the header fields of a valid packet. For IPv6, tos is the traffic
// class, ttl the hop limit and id the flow label.
type form struct {
	from, to  net.HardwareAddr
	tos, ttl  uint8
	id        uint16
	flags     layers.IPv4Flag
	options   []layers.IPv4Option
	proto     layers.IPProtocol
	src, dst  netip.AddrPort
	tcp       layers.TCP // without its ports
	icmp      layers.ICMPv4TypeCode
	icmp6     layers.ICMPv6TypeCode
	extension []byte            // IPv6 extension header; its first byte is the next header
	header    layers.IPProtocol // type of the extension header
	payload   []byte
	noUDPSums bool
}

// bytes6 is bytes() for IPv6.
func (f form) bytes6() []byte {
	ip := layers.IPv6{
		Version: 6, TrafficClass: f.tos, FlowLabel: uint32(f.id), HopLimit: f.ttl, NextHeader: f.proto,
		SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice(),
	}
	all := []gopacket.SerializableLayer{
		&layers.Ethernet{SrcMAC: f.from, DstMAC: f.to, EthernetType: layers.EthernetTypeIPv6}, &ip,
	}
	switch f.proto {
	case layers.IPProtocolTCP:
		tcp := f.tcp
		tcp.SrcPort, tcp.DstPort = layers.TCPPort(f.src.Port()), layers.TCPPort(f.dst.Port())
		_ = tcp.SetNetworkLayerForChecksum(&ip)
		all = append(all, &tcp)
	case layers.IPProtocolUDP:
		udp := layers.UDP{SrcPort: layers.UDPPort(f.src.Port()), DstPort: layers.UDPPort(f.dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(&ip)
		all = append(all, &udp)
	case layers.IPProtocolICMPv6:
		icmp := layers.ICMPv6{TypeCode: f.icmp6}
		_ = icmp.SetNetworkLayerForChecksum(&ip)
		all = append(all, &icmp)
	}
	all = append(all, gopacket.Payload(f.payload))
	b := serialize(all)
	b = b[:ethLen+ip6Len+int(binary.BigEndian.Uint16(b[ethLen+4:]))]
	if f.noUDPSums && f.proto == layers.IPProtocolUDP {
		b[ethLen+ip6Len+6], b[ethLen+ip6Len+7] = 0, 0
	}
	if f.extension != nil {
		e := slices.Clone(f.extension)
		e[0] = byte(f.proto)
		b = slices.Insert(b, ethLen+ip6Len, e...)
		b[ethLen+6] = byte(f.header)
		binary.BigEndian.PutUint16(b[ethLen+4:], uint16(len(b)-ethLen-ip6Len))
	}
	return b
}

func serialize(all []gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		panic(fmt.Sprintf("invalid form: %v", err))
	}
	return buf.Bytes()
}

// bytes returns the frame with correct lengths and checksums.
func (f form) bytes() []byte {
	if f.dst.Addr().Is6() {
		return f.bytes6()
	}
	ip := layers.IPv4{
		Version: 4, IHL: 5, TOS: f.tos, TTL: f.ttl, Id: f.id, Flags: f.flags, Options: f.options,
		Protocol: f.proto, SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice(),
	}
	all := []gopacket.SerializableLayer{
		&layers.Ethernet{SrcMAC: f.from, DstMAC: f.to, EthernetType: layers.EthernetTypeIPv4}, &ip,
	}
	switch f.proto {
	case layers.IPProtocolTCP:
		tcp := f.tcp
		tcp.SrcPort, tcp.DstPort = layers.TCPPort(f.src.Port()), layers.TCPPort(f.dst.Port())
		_ = tcp.SetNetworkLayerForChecksum(&ip)
		all = append(all, &tcp)
	case layers.IPProtocolUDP:
		udp := layers.UDP{SrcPort: layers.UDPPort(f.src.Port()), DstPort: layers.UDPPort(f.dst.Port())}
		_ = udp.SetNetworkLayerForChecksum(&ip)
		all = append(all, &udp)
	case layers.IPProtocolICMPv4:
		all = append(all, &layers.ICMPv4{TypeCode: f.icmp, Id: f.src.Port()})
	}
	all = append(all, gopacket.Payload(f.payload))
	// Without padding: padded short frames are a kind of their own.
	b := serialize(all)
	b = b[:ethLen+int(binary.BigEndian.Uint16(b[ethLen+2:]))]
	if f.noUDPSums && f.proto == layers.IPProtocolUDP {
		at := ethLen + int(b[ethLen]&15)*4 + 6
		b[at], b[at+1] = 0, 0
	}
	return b
}

// sum returns the one's complement sum of bytes.
func sum(slices ...[]byte) uint16 {
	var s uint32
	for _, p := range slices {
		for i, v := range p {
			s += uint32(v) << (8 * (1 - i&1))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// fixIP corrects the checksum of a frame's IP header, if it has one.
func fixIP(b []byte) {
	if isIPv6(b) {
		return
	}
	ip := b[ethLen:]
	ip = ip[:min(len(ip), int(ip[0]&15)*4)]
	if len(ip) < 12 {
		return
	}
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip))
}

// tupleOf returns addresses and ports of a frame with an IP header; missing
// ports are 0.
func tupleOf(b []byte) (src, dst netip.AddrPort) {
	var ports [4]byte
	if isIPv6(b) {
		if at := ethLen + ip6Len; at < len(b) {
			copy(ports[:], b[at:])
		}
		addr := func(at int) netip.Addr { return netip.AddrFrom16([16]byte(b[at:])) }
		return netip.AddrPortFrom(addr(ethLen+8), binary.BigEndian.Uint16(ports[:])),
			netip.AddrPortFrom(addr(ethLen+24), binary.BigEndian.Uint16(ports[2:]))
	}
	if at := ethLen + int(b[ethLen]&15)*4; at < len(b) {
		copy(ports[:], b[at:])
	}
	addr := func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at:])) }
	return netip.AddrPortFrom(addr(ethLen+12), binary.BigEndian.Uint16(ports[:])),
		netip.AddrPortFrom(addr(ethLen+16), binary.BigEndian.Uint16(ports[2:]))
}

// describe decodes a frame.
func describe(b string) string {
	p := gopacket.NewPacket([]byte(b), layers.LayerTypeEthernet, gopacket.Default)
	return p.Dump()
}
