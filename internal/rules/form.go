package rules

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/conntrack"
)

// Device is a network device of the namespace.
type Device struct {
	Name  string
	Index int
}

// Conn is a connection of a container, and the devices that its packets may
// meet. What is left empty is not known, and may be anything.
type Conn struct {
	conntrack.Conn
	Port    Device   // the container's bridge port
	Inside  []Device // its packets enter and leave the host's IP by one of them: the bridge
	Outside []Device // and by one of these on the other side: the uplinks
	// Replies tells that the container's own packets are those of the reply
	// direction, as with a published port.
	Replies bool
}

// Bits of conntrack.Conn.Status (enum ip_conntrack_status).
const (
	statusExpected  = 1 << 0
	statusSeenReply = 1 << 1
	statusConfirmed = 1 << 3
	statusSrcNAT    = 1 << 4
	statusDstNAT    = 1 << 5
)

// State of a packet (NF_CT_STATE_BIT), as nftables and iptables number it.
const (
	stateInvalid     = 1 << 0
	stateEstablished = 1 << 1
	stateRelated     = 1 << 2
	stateNew         = 1 << 3
)

// form is what all packets of one direction of a connection have in common at
// one hook. Express packets have neither IP options nor are they fragments,
// and no SYN, FIN or RST.
type form struct {
	conn      *Conn
	network   [20]octet // IPv4 header
	transport [20]octet // TCP's, or UDP's first 8
	proto     uint8     // 0 if not known
	reply     bool      // of conntrack's directions
	outward   bool      // from the container
	oneWay    bool      // of a connection without any reply yet
	iif, oif  *Device   // nil if not known
	tracked   bool      // conntrack has seen the packet
	layer3    bool      // the hook is one of IP's
	bridged   bool      // the hook is one of a bridge's
	// first tells that the packet belongs to no connection yet; firstState is
	// conntrack's state of it then, 0 if that is not known. All flags of TCP and
	// the DSCP of such packets vary.
	first      bool
	firstState uint16
}

// stage is how far address translation has got.
type stage int

const (
	arrived    stage = iota // as the packet came in
	forwarded               // its destination is translated
	translated              // and its source
)

// tuple returns the addresses of a direction's packets at a stage.
func (c *Conn) tuple(reply bool, s stage) (src, dst netip.AddrPort) {
	arriving, leaving := c.Orig, c.Reply.Reverse()
	if reply {
		arriving, leaving = c.Reply, c.Orig.Reverse()
	}
	src, dst = arriving.Src, arriving.Dst
	if s >= forwarded {
		dst = leaving.Dst
	}
	if s >= translated {
		src = leaving.Src
	}
	return src, dst
}

// fill sets the packet's headers to what is known of them at a stage.
func (f *form) fill(s stage) {
	src, dst := f.conn.tuple(f.reply, s)
	f.proto = f.conn.Orig.Proto

	const reservedDF, fragment = 0xc0, 0x3f
	for i := range f.network {
		f.network[i] = octet{varies: 0xff}
	}
	f.network[0] = octet{value: 0x45, known: 0xff}
	f.network[1] = octet{varies: 0x03} // ECN; SCON compares DSCP
	if f.first {
		f.network[1] = octet{varies: 0xff}
	}
	f.network[6] = octet{known: fragment, varies: reservedDF}
	f.network[7] = octet{known: 0xff}
	f.network[9] = octet{value: f.proto, known: 0xff}
	if f.proto == 0 {
		f.network[9] = octet{}
	}
	setAddr(f.network[12:16], src.Addr())
	setAddr(f.network[16:20], dst.Addr())

	for i := range f.transport {
		f.transport[i] = octet{varies: 0xff}
	}
	setPort(f.transport[0:2], src)
	setPort(f.transport[2:4], dst)
	if f.proto == unix.IPPROTO_UDP || f.first {
		return
	}
	const finSynRst, ack = 0x07, 0x10
	f.transport[13] = octet{value: ack, known: finSynRst | ack, varies: 0xff &^ (finSynRst | ack)}
}

// state is conntrack's state of the packet, 0 if that is not known.
func (f *form) state() uint16 {
	switch {
	case !f.tracked:
		return 0
	case f.first:
		return f.firstState
	case !f.oneWay:
		return stateEstablished
	case f.conn.Status == 0:
		return 0
	case f.conn.Status&statusExpected != 0:
		return stateRelated
	default:
		return stateNew
	}
}

// connected tells whether conntrack has a connection for the packet.
func (f *form) connected() bool {
	return f.tracked && (!f.first || f.firstState == stateNew)
}

// status is what is known of the connection's status, and which bits of it.
func (f *form) status() (value, mask uint32) {
	if f.conn.Status == 0 || f.first {
		return 0, 0
	}
	const never = statusExpected | statusSrcNAT | statusDstNAT // changes
	value = f.conn.Status & (never | statusConfirmed)
	mask = never | statusConfirmed
	if !f.oneWay {
		value, mask = value|statusSeenReply, mask|statusSeenReply
	}
	return value, mask
}

func setAddr(octets []octet, a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		setKnown(octets, b[:])
		return
	}
	clear(octets)
}

func setPort(octets []octet, a netip.AddrPort) {
	if a.IsValid() {
		setKnown(octets, binary.BigEndian.AppendUint16(nil, a.Port()))
		return
	}
	clear(octets)
}

// name is a device's name as the rules compare it.
func (d *Device) name() (name [unix.IFNAMSIZ]byte) {
	copy(name[:unix.IFNAMSIZ-1], d.Name)
	return name
}
