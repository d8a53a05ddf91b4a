package differential

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Places in a frame without a VLAN tag.
const (
	ethLen = 14
	ipLen  = 20
	udpLen = 8
	tcpLen = 20
	l4At   = ethLen + ipLen
)

// form is what a sound packet looks like.
type form struct {
	from, to  net.HardwareAddr
	tos, ttl  uint8
	id        uint16
	flags     layers.IPv4Flag
	options   []layers.IPv4Option
	proto     layers.IPProtocol
	src, dst  netip.AddrPort
	tcp       layers.TCP // but for its ports
	icmp      layers.ICMPv4TypeCode
	payload   []byte
	noUDPSums bool
}

// bytes is the frame, with all lengths and checksums as they should be.
func (f form) bytes() []byte {
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
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		panic(fmt.Sprintf("a form that cannot be: %v", err))
	}
	// The padding of short frames is a damage of its own.
	b := buf.Bytes()
	b = b[:ethLen+int(binary.BigEndian.Uint16(b[ethLen+2:]))]
	if f.noUDPSums && f.proto == layers.IPProtocolUDP {
		at := ethLen + int(b[ethLen]&15)*4 + 6
		b[at], b[at+1] = 0, 0
	}
	return b
}

// sum is the ones' complement sum of bytes.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i, v := range p {
			s += uint32(v) << (8 * (1 - i&1))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// fixIP makes the checksum of a frame's IP header right.
func fixIP(b []byte) {
	ip := b[ethLen:]
	ip = ip[:min(len(ip), int(ip[0]&15)*4)]
	if len(ip) < 12 {
		return
	}
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip))
}

// tupleOf reads addresses and ports of a frame with an IP header; ports that it
// does not have are 0.
func tupleOf(b []byte) (src, dst netip.AddrPort) {
	var ports [4]byte
	if at := ethLen + int(b[ethLen]&15)*4; at < len(b) {
		copy(ports[:], b[at:])
	}
	addr := func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at:])) }
	return netip.AddrPortFrom(addr(ethLen+12), binary.BigEndian.Uint16(ports[:])),
		netip.AddrPortFrom(addr(ethLen+16), binary.BigEndian.Uint16(ports[2:]))
}

// describe decodes a frame for people.
func describe(b string) string {
	p := gopacket.NewPacket([]byte(b), layers.LayerTypeEthernet, gopacket.Default)
	return p.Dump()
}
