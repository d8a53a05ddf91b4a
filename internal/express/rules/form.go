package rules

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Device is a network device of the namespace.
type Device struct {
	Name   string
	Index  int
	Bridge bool // packets that leave by it pass the output hook of bridges
}

// Conn is a connection of a container, and the devices that its packets may
// pass. Empty fields are not known and may be anything.
type Conn struct {
	conntrack.Conn
	Port    Device   // the container's bridge port
	Peer    Device   // that of the container at the other end, if there is one
	Inside  []Device // its packets enter and leave the host's IP by one of them: the bridge
	Outside []Device // and by one of these on the other side: the uplinks, or the other container's bridge
	// Bridged are ports of the container's bridge by which its packets may leave and enter
	// instead, without the host's IP.
	Bridged []Device
	// Untracked means that conntrack does not know the connection.
	Untracked bool
	// Replies means that the container's own packets are those of the reply
	// direction, as with a published port.
	Replies bool
	// Flags are those of TCP, FIN and SYN, that packets may have by which is decided, or that
	// a decision is used for.
	Flags uint8
	// Shared is what is known of the addresses and ports, if the Conn stands for
	// several connections that have only this in common; nil is everything.
	Shared *Shared
}

// Flags of TCP.
const (
	FIN = uint8(0x01)
	SYN = uint8(0x02)
)

// Shared is how many leading bits of addresses and ports connections have in common,
// in the order of Ends.
type Shared [4]struct{ Addr, Port uint8 }

// Ends are a connection's addresses and ports.
func Ends(c *conntrack.Conn) [4]netip.AddrPort {
	return [4]netip.AddrPort{c.Orig.Src, c.Orig.Dst, c.Reply.Src, c.Reply.Dst}
}

// Indices of Ends.
const (
	origSrc = iota
	origDst
	replySrc
	replyDst
)

// end is what is known of an address and a port.
type end struct {
	netip.AddrPort
	addrBits, portBits uint8 // leading bits that are known, of those that there are
}

func (c *Conn) end(i int) end {
	if c.Shared == nil {
		return end{Ends(&c.Conn)[i], 128, 16}
	}
	return end{Ends(&c.Conn)[i], c.Shared[i].Addr, c.Shared[i].Port}
}

// Bits of conntrack.Conn.Status (enum ip_conntrack_status).
const (
	statusExpected  = 1 << 0
	statusSeenReply = 1 << 1
	statusAssured   = 1 << 2
	statusConfirmed = 1 << 3
	statusSrcNAT    = 1 << 4
	statusDstNAT    = 1 << 5
)

// States of a packet (NF_CT_STATE_BIT), numbered as in nftables and iptables.
const (
	stateInvalid     = 1 << 0
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
)

// form is what all packets of one direction of a connection have in common at
// one hook. Express packets are no fragments, have no IP options, and are no
// SYN, FIN or RST, unless Conn.Flags says so.
type form struct {
	conn      *Conn
	family    family
	headers   [40]octet // IP's: network is what there is of them
	transport [20]octet // TCP's, or UDP's first 8
	proto     uint8     // 0 if not known
	reply     bool      // of conntrack's directions
	outward   bool      // from the container
	unreplied bool      // of a connection without any reply yet
	iif, oif  *Device   // nil if not known
	tracked   bool      // conntrack has seen the packet
	layer3    bool      // the hook is one of IP's
	bridged   bool      // the hook is one of a bridge's
	// bare means that express packets do pass the hook, without conntrack's entry and
	// without a route: a rule there sees neither, and both of a regular packet.
	bare bool
	// first means that the packet belongs to no connection yet; firstState is
	// conntrack's state of it then, 0 if that is not known. All TCP flags and
	// the DSCP of such packets vary.
	first      bool
	firstState uint16
}

// family is a version of IP.
type family uint8

const (
	ipv4 family = iota
	ipv6
)

// families returns those that packets of a connection may have.
func (c *Conn) families() []family {
	switch a := c.Orig.Src.Addr(); {
	case a.Is4():
		return []family{ipv4}
	case a.Is6():
		return []family{ipv6}
	default:
		return []family{ipv4, ipv6}
	}
}

// network is the IP header.
func (f *form) network() []octet {
	if f.family == ipv6 {
		return f.headers[:]
	}
	return f.headers[:20]
}

// protocol is the byte that holds the transport protocol.
func (f *form) protocol() []octet {
	if f.family == ipv6 {
		return f.headers[6:7]
	}
	return f.headers[9:10]
}

func (f *form) source() []octet {
	if f.family == ipv6 {
		return f.headers[8:24]
	}
	return f.headers[12:16]
}

func (f *form) destination() []octet {
	if f.family == ipv6 {
		return f.headers[24:40]
	}
	return f.headers[16:20]
}

// tos is the traffic class, which is split over two bytes in IPv6.
func (f *form) tos() octet {
	if f.family == ipv4 {
		return f.headers[1]
	}
	a, b := f.headers[0], f.headers[1]
	return octet{a.value<<4 | b.value>>4, a.known<<4 | b.known>>4, a.varies<<4 | b.varies>>4}
}

// ecn is the bits that vary in the second byte of the header if the DSCP does
// not. In IPv6 the flow label is there as well.
func (f *form) ecn() uint8 {
	if f.family == ipv6 {
		return 0x3f
	}
	return 0x03
}

// stage is the progress of address translation.
type stage int

const (
	arrived    stage = iota // as the packet came in
	forwarded               // its destination is translated
	translated              // and its source
)

// tuple returns the addresses of a direction's packets at a stage.
func (c *Conn) tuple(reply bool, s stage) (src, dst end) {
	from, to, leavesFrom, leavesTo := origSrc, origDst, replyDst, replySrc
	if reply {
		from, to, leavesFrom, leavesTo = replySrc, replyDst, origDst, origSrc
	}
	if s >= forwarded {
		to = leavesTo
	}
	if s >= translated {
		from = leavesFrom
	}
	return c.end(from), c.end(to)
}

// fill sets the packet's headers to what is known of them at a stage.
func (f *form) fill(s stage) {
	src, dst := f.conn.tuple(f.reply, s)
	f.proto = f.conn.Orig.Proto

	vary(f.headers[:])
	f.headers[1] = octet{varies: f.ecn()} // SCON compares DSCP
	if f.first {
		f.headers[1] = octet{varies: 0xff}
	}
	if f.family == ipv6 {
		f.headers[0] = octet{value: 0x60, known: 0xf0}
		if f.first {
			f.headers[0].varies = 0x0f
		}
	} else {
		const reservedDF, fragment = 0xc0, 0x3f
		f.headers[0] = octet{value: 0x45, known: 0xff}
		f.headers[6] = octet{known: fragment, varies: reservedDF}
		f.headers[7] = octet{known: 0xff}
	}
	f.protocol()[0] = octet{value: f.proto, known: 0xff}
	if f.proto == 0 {
		f.protocol()[0] = octet{}
	}
	src.setAddr(f.source())
	dst.setAddr(f.destination())

	for i := range f.transport {
		f.transport[i] = octet{varies: 0xff}
	}
	src.setPort(f.transport[0:2])
	dst.setPort(f.transport[2:4])
	if f.proto != unix.IPPROTO_TCP || f.first {
		return
	}
	const rst, ack = 0x04, 0x10
	known := (FIN | SYN | rst | ack) &^ f.conn.Flags
	f.transport[13] = octet{value: ack, known: known, varies: ^known}
}

// state is conntrack's state of the packet, 0 if that is not known.
func (f *form) state() uint16 {
	switch {
	case !f.tracked:
		return 0
	case f.first:
		return f.firstState
	case !f.unreplied:
		return stateEstablished
	case f.conn.Status == 0:
		return 0
	case f.conn.Status&statusExpected != 0:
		return stateRelated
	default:
		return stateNew
	}
}

// begins reports whether the first packet that has a state makes a connection.
func begins(state uint16) bool { return state == stateNew || state == stateRelated }

// connected reports whether conntrack has a connection for the packet.
func (f *form) connected() bool {
	return f.tracked && (!f.first || begins(f.firstState))
}

// status returns what is known of the connection's status, which bits of it, and which differ
// between packets: TCP's third packet makes the connection assured, and one of UDP that comes
// two seconds after the first.
func (f *form) status() (value, mask, varies uint32) {
	if f.conn.Flags&SYN != 0 {
		varies = statusAssured
	}
	if f.conn.Status == 0 || f.first {
		return 0, 0, varies
	}
	if f.conn.Orig.Proto == unix.IPPROTO_UDP {
		varies = statusAssured &^ f.conn.Status
	}
	const never = statusExpected | statusSrcNAT | statusDstNAT // changes
	value = f.conn.Status & (never | statusConfirmed)
	mask = never | statusConfirmed
	if !f.unreplied {
		value, mask = value|statusSeenReply, mask|statusSeenReply
	}
	return value, mask, varies
}

// setAddr sets what is known of the address; the octets after it are not known.
func (e end) setAddr(octets []octet) {
	clear(octets)
	if b := e.Addr().AsSlice(); len(b) <= len(octets) {
		setLeading(octets, b, e.addrBits)
	}
}

// setPort sets what is known of the port.
func (e end) setPort(octets []octet) {
	clear(octets)
	if e.Port() != 0 {
		setLeading(octets, binary.BigEndian.AppendUint16(nil, e.Port()), e.portBits)
	}
}

// name is a device's name as rules compare it.
func (d *Device) name() (name [unix.IFNAMSIZ]byte) {
	copy(name[:unix.IFNAMSIZ-1], d.Name)
	return name
}
