package datapath_test

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ethLen, ipLen, ip6Len, tcpLen, udpLen = 14, 20, 40, 20, 8

	flagFIN, flagSYN, flagRST, flagPSH, flagACK = 0x01, 0x02, 0x04, 0x08, 0x10
)

type mac [6]byte

// frame is an Ethernet frame with TCP or UDP over IPv4, or over IPv6 if its
// addresses are: then tos is the traffic class, ttl the hop limit, and id the flow
// label. Its bytes have
// full and correct checksums unless it is damaged, so that a packet whose checksums were only
// adjusted must be equal to the frame that it should have become.
type frame struct {
	dstMAC, srcMAC mac
	tos            uint8
	id, frag       uint16
	ttl            uint8
	proto          uint8
	src, dst       netip.AddrPort
	flags          uint8 // of TCP
	seq, ack       uint32
	payload        []byte
	noChecksum     bool // UDP: checksum zero
	damaged        bool // the last byte, so that the checksum of TCP or UDP is wrong
}

func (f frame) isIPv6() bool { return f.src.Addr().Is6() }

// bytes6 is bytes for IPv6.
func (f frame) bytes6() []byte {
	l4 := f.l4()
	b := make([]byte, ethLen+ip6Len, ethLen+ip6Len+len(l4))
	copy(b, f.dstMAC[:])
	copy(b[6:], f.srcMAC[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IPV6)

	ip := b[ethLen:]
	binary.BigEndian.PutUint32(ip, 6<<28|uint32(f.tos)<<20|uint32(f.id))
	binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
	ip[6], ip[7] = f.proto, f.ttl
	copy(ip[8:], f.src.Addr().AsSlice())
	copy(ip[24:], f.dst.Addr().AsSlice())
	return append(b, l4...)
}

func (f frame) bytes() []byte {
	if f.isIPv6() {
		return f.bytes6()
	}
	l4 := f.l4()
	b := make([]byte, ethLen+ipLen, ethLen+ipLen+len(l4))
	copy(b, f.dstMAC[:])
	copy(b[6:], f.srcMAC[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)

	ip := b[ethLen:]
	ip[0], ip[1] = 0x45, f.tos
	binary.BigEndian.PutUint16(ip[2:], uint16(ipLen+len(l4)))
	binary.BigEndian.PutUint16(ip[4:], f.id)
	binary.BigEndian.PutUint16(ip[6:], f.frag)
	ip[8], ip[9] = f.ttl, f.proto
	src, dst := f.src.Addr().As4(), f.dst.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	fixIP(b)
	return append(b, l4...)
}

// l4 is everything behind the IP header.
func (f frame) l4() []byte {
	var b []byte
	at := 16 // of the checksum
	if f.proto == unix.IPPROTO_TCP {
		b = make([]byte, tcpLen)
		binary.BigEndian.PutUint32(b[4:], f.seq)
		binary.BigEndian.PutUint32(b[8:], f.ack)
		b[12], b[13] = tcpLen/4<<4, f.flags
		binary.BigEndian.PutUint16(b[14:], 0xfaf0)
	} else {
		at = 6
		b = make([]byte, udpLen)
		binary.BigEndian.PutUint16(b[4:], uint16(udpLen+len(f.payload)))
	}
	binary.BigEndian.PutUint16(b, f.src.Port())
	binary.BigEndian.PutUint16(b[2:], f.dst.Port())
	b = append(b, f.payload...)
	if f.noChecksum {
		return b
	}

	pseudo := append(f.src.Addr().AsSlice(), f.dst.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, f.proto, byte(len(b)>>8), byte(len(b)))
	check := checksum(pseudo, b)
	if check == 0 && f.proto == unix.IPPROTO_UDP {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], check)
	if f.damaged {
		b[len(b)-1] ^= 0x40
	}
	return b
}

// fixIP makes the IP header's checksum right.
func fixIP(b []byte) {
	ip := b[ethLen : ethLen+int(b[ethLen]&0x0f)*4]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
}

// checksum is the Internet checksum (RFC 1071) of slices of even length, the
// last of which may be odd.
func checksum(slices ...[]byte) uint16 {
	var sum uint32
	for _, p := range slices {
		for i, v := range p {
			sum += uint32(v) << (8 * (1 - i&1))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
