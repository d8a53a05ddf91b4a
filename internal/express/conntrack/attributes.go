package conntrack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Message types (enum cntl_msg_types, enum ctnl_exp_msg_types).
const (
	msgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	msgGetExpected = unix.NFNL_SUBSYS_CTNETLINK_EXP<<8 | 1
)

// Attributes (linux/netfilter/nfnetlink_conntrack.h); integers are in network
// byte order.
const (
	attrTupleOrig   = 1
	attrTupleReply  = 2
	attrStatus      = 3
	attrProtoInfo   = 4
	attrHelp        = 5
	attrTimeout     = 7
	attrMark        = 8
	attrID          = 12
	attrSeqAdjOrig  = 15
	attrSeqAdjReply = 16
	attrZone        = 18

	attrTupleIP    = 1
	attrTupleProto = 2

	attrV4Src = 1
	attrV4Dst = 2
	attrV6Src = 3
	attrV6Dst = 4

	attrProtoNum     = 1
	attrProtoSrcPort = 2
	attrProtoDstPort = 3

	attrProtoInfoTCP     = 1
	attrTCPState         = 1
	attrTCPFlagsOriginal = 4
	attrTCPFlagsReply    = 5

	attrHelpName = 1
)

// String writes a tuple as conntrack(8) shows it.
func (t Tuple) String() string {
	proto := fmt.Sprint(t.Proto)
	switch t.Proto {
	case unix.IPPROTO_TCP:
		proto = "tcp"
	case unix.IPPROTO_UDP:
		proto = "udp"
	}
	return fmt.Sprintf("%s %v > %v", proto, t.Src, t.Dst)
}

// appendTo appends a tuple's attribute to a message.
func (t Tuple) appendTo(b []byte, typ uint16) []byte {
	b, whole := nlmsg.Begin(b, typ)
	b, part := nlmsg.Begin(b, attrTupleIP)
	if from, to := t.Src.Addr(), t.Dst.Addr(); from.Is4() && to.Is4() {
		src, dst := from.As4(), to.As4()
		b = nlmsg.Append(nlmsg.Append(b, attrV4Src, src[:]...), attrV4Dst, dst[:]...)
	} else {
		src, dst := from.As16(), to.As16()
		b = nlmsg.Append(nlmsg.Append(b, attrV6Src, src[:]...), attrV6Dst, dst[:]...)
	}
	b = nlmsg.End(b, part)
	b, part = nlmsg.Begin(b, attrTupleProto)
	b = nlmsg.Append(b, attrProtoNum, t.Proto)
	b = appendPort(appendPort(b, attrProtoSrcPort, t.Src), attrProtoDstPort, t.Dst)
	return nlmsg.End(nlmsg.End(b, part), whole)
}

func appendPort(b []byte, typ uint16, a netip.AddrPort) []byte {
	return nlmsg.Append(b, typ, byte(a.Port()>>8), byte(a.Port()))
}

// parseConn parses a message, which begins with struct nfgenmsg. It reports
// false if the message is not a complete TCP or UDP connection.
func parseConn(b []byte) (c Conn, ok bool) {
	if len(b) < nlmsg.SizeofNfgenmsg {
		return Conn{}, false
	}
	for typ, data := range nlmsg.Attributes(b[nlmsg.SizeofNfgenmsg:]) {
		switch typ {
		case attrTupleOrig:
			c.Orig = parseTuple(data)
		case attrTupleReply:
			c.Reply = parseTuple(data)
		case attrStatus:
			c.Status = be32(data)
		case attrProtoInfo:
			c.parseTCP(data)
		case attrHelp:
			c.Helper = parseHelper(data)
		case attrTimeout:
			c.Timeout = time.Duration(be32(data)) * time.Second
		case attrMark:
			c.Mark = be32(data)
		case attrID:
			c.ID = be32(data)
		case attrZone:
			c.Zone = be16(data)
		case attrSeqAdjOrig, attrSeqAdjReply:
			c.SeqAdj = true
		}
	}
	if c.Status&statusSeqAdjust != 0 {
		c.SeqAdj = true
	}
	return c, c.Orig.whole() && c.Reply.whole()
}

// parseTuple parses the payload of a tuple attribute.
func parseTuple(b []byte) (t Tuple) {
	var src, dst netip.Addr
	var sport, dport uint16
	for typ, data := range nlmsg.Attributes(b) {
		switch typ {
		case attrTupleIP:
			for typ, data := range nlmsg.Attributes(data) {
				addr, _ := netip.AddrFromSlice(data)
				switch typ {
				case attrV4Src, attrV6Src:
					src = addr
				case attrV4Dst, attrV6Dst:
					dst = addr
				}
			}
		case attrTupleProto:
			for typ, data := range nlmsg.Attributes(data) {
				switch {
				case typ == attrProtoNum && len(data) == 1:
					t.Proto = data[0]
				case typ == attrProtoSrcPort:
					sport = be16(data)
				case typ == attrProtoDstPort:
					dport = be16(data)
				}
			}
		}
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t
}

// family is the address family of a tuple.
func (t Tuple) family() byte {
	if t.Src.Addr().Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// whole reports whether a parsed tuple is one of TCP or UDP over IPv4 or IPv6.
func (t Tuple) whole() bool {
	return (t.Proto == unix.IPPROTO_TCP || t.Proto == unix.IPPROTO_UDP) &&
		t.Src.IsValid() && t.Dst.IsValid() && t.Src.Addr().Is4() == t.Dst.Addr().Is4()
}

// parseTCP parses the payload of a protocol information attribute.
func (c *Conn) parseTCP(b []byte) {
	for typ, data := range nlmsg.Attributes(b) {
		if typ != attrProtoInfoTCP {
			continue
		}
		for typ, data := range nlmsg.Attributes(data) {
			switch {
			case typ == attrTCPState && len(data) == 1:
				c.TCPState = data[0]
			case typ == attrTCPFlagsOriginal && len(data) == 2:
				c.TCPFlags[0] = data[0]
			case typ == attrTCPFlagsReply && len(data) == 2:
				c.TCPFlags[1] = data[0]
			}
		}
	}
}

// parseHelper parses the payload of a helper attribute.
func parseHelper(b []byte) string {
	for typ, data := range nlmsg.Attributes(b) {
		if typ == attrHelpName {
			return string(bytes.TrimRight(data, "\x00"))
		}
	}
	return ""
}

// be32 reads an integer, 0 if it has another size.
func be32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// be16 reads an integer, 0 if it has another size.
func be16(b []byte) uint16 {
	if len(b) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}
