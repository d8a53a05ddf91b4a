package changes

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// MAC is an Ethernet address.
type MAC [6]byte

func (a MAC) String() string { return net.HardwareAddr(a[:]).String() }

type neighbourKey struct {
	ifindex int32
	addr    netip.Addr
}

// fdbKey is a MAC address in the forwarding table of a bridge or a tunnel
// device.
type fdbKey struct {
	table int32
	mac   MAC
	vlan  uint16
}

// fdbEntry is its destination: a port, and the remote end of a tunnel; or, of a
// bridge's permanent entry, the bridge itself.
type fdbEntry struct {
	port      int32
	dst       netip.Addr
	way       string // what else says how a tunnel reaches it
	permanent bool
}

// validStates are those in which the kernel uses a neighbour's address.
const validStates = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE |
	unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// ndmsg is a parsed message about a neighbour or a forwarding table.
type ndmsg struct {
	ifindex int32
	state   uint16
	flags   uint8
	dst     netip.Addr
	way     string
	mac     MAC
	hasMAC  bool
	vlan    uint16
	master  int32
}

// neighbour evaluates a message about an IP neighbour or a forwarding table.
func (k *known) neighbour(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofNdMsg {
		return Event{}, false
	}
	n := parseNdmsg(m.Data)
	switch {
	case m.Data[0] == unix.AF_BRIDGE && n.hasMAC:
		return k.fdbMessage(n, added(m.Type))
	case (m.Data[0] == unix.AF_INET || m.Data[0] == unix.AF_INET6) && n.flags&unix.NTF_PROXY == 0 && !n.dst.IsMulticast():
		return k.resolved(n, added(m.Type) && n.state&validStates != 0)
	default:
		return Event{}, false
	}
}

// resolved evaluates the state of a neighbour. A newly learned neighbour makes
// no decision stale, unless the kernel may have made one of its own before, nor does one that is
// confirmed unchanged.
func (k *known) resolved(n ndmsg, valid bool) (Event, bool) {
	key := neighbourKey{n.ifindex, n.dst}
	was, old := k.neighbours[key]
	e := Event{Kind: Neighbour, Ifindex: int(n.ifindex), Stale: true, Scope: Scope{NextHop: was}}
	switch {
	case !valid:
		delete(k.neighbours, key)
		e.Reason = fmt.Sprintf("neighbour %v on %s is gone", n.dst, k.name(n.ifindex))
		return e, old
	case !n.hasMAC:
		return Event{}, false
	default:
		k.neighbours[key] = n.mac
		e.Reason = fmt.Sprintf("neighbour %v on %s moved to %v", n.dst, k.name(n.ifindex), n.mac)
		return e, (old || k.devices[n.ifindex].noARP) && was != n.mac
	}
}

// fdbMessage evaluates the entry of a MAC address.
func (k *known) fdbMessage(n ndmsg, valid bool) (Event, bool) {
	if n.mac[0]&1 != 0 { // multicast never goes express
		return Event{}, false
	}
	key := fdbKey{n.master, n.mac, n.vlan}
	if n.master == 0 {
		key.table = n.ifindex
	}
	is := fdbEntry{n.ifindex, n.dst, n.way, n.master != 0 && n.state&unix.NUD_PERMANENT != 0}
	was, old := k.fdb[key]
	e := Event{Kind: FDB, Ifindex: int(n.ifindex), Stale: true}
	// An address of the bridge's own, which a port's may be, concerns what is routed.
	if n.master != 0 && !was.permanent && !is.permanent { // a bridge's, not a tunnel's
		e.Scope.Ports[0], e.Scope.NextHop = int(n.ifindex), n.mac
		if was.port != n.ifindex {
			e.Scope.Ports[1] = int(was.port)
		}
	}
	if !valid {
		if was.port != n.ifindex { // it has moved already
			return Event{}, false
		}
		delete(k.fdb, key)
		e.Reason = fmt.Sprintf("%v is gone from %s", n.mac, k.name(n.ifindex))
		return e, old && k.devices[n.ifindex].up // otherwise it was removed with the device
	}
	k.fdb[key] = is
	e.Reason = fmt.Sprintf("%v moved from %s to %s", n.mac, k.name(was.port), k.name(n.ifindex))
	return e, old && is != was
}

func parseNdmsg(b []byte) ndmsg {
	const nexthop = 13 // NDA_NH_ID
	n := ndmsg{
		ifindex: int32(binary.NativeEndian.Uint32(b[4:])),
		state:   binary.NativeEndian.Uint16(b[8:]),
		flags:   b[10],
	}
	for typ, data := range nlmsg.Attributes(b[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_DST:
			n.dst, _ = netip.AddrFromSlice(data)
		case unix.NDA_LLADDR:
			n.hasMAC = len(data) == len(n.mac)
			copy(n.mac[:], data)
		case unix.NDA_VLAN:
			if len(data) == 2 {
				n.vlan = binary.NativeEndian.Uint16(data)
			}
		case unix.NDA_PORT, unix.NDA_VNI, unix.NDA_IFINDEX, unix.NDA_SRC_VNI, nexthop:
			n.way += string(rune(typ)) + string(data)
		case unix.NDA_MASTER:
			n.master = int32(native32(data))
		}
	}
	return n
}
