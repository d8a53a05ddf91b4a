package changes

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// addressState is what is compared of an address: each router advertisement announces
// one of IPv6 again, with new lifetimes.
type addressState struct {
	bits  uint8
	flags uint32
}

// address evaluates a message about an address. It makes decisions stale,
// except for link-local addresses, which no forwarded packet has, and
// unchanged IPv6 addresses.
func (k *known) address(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return Event{}, false
	}
	index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
	var addr, subnet, broadcast netip.Addr
	is := addressState{bits: m.Data[1], flags: uint32(m.Data[2])}
	for typ, data := range nlmsg.Attributes(m.Data[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_LOCAL:
			addr, _ = netip.AddrFromSlice(data)
		case unix.IFA_ADDRESS:
			subnet, _ = netip.AddrFromSlice(data)
		case unix.IFA_BROADCAST:
			broadcast, _ = netip.AddrFromSlice(data)
		case unix.IFA_FLAGS:
			is.flags = native32(data)
		}
	}
	if !addr.IsValid() {
		addr = subnet
	}
	if changed := k.addressIs(neighbourKey{index, addr}, is, added(m.Type)); m.Data[0] == unix.AF_INET6 && !changed {
		return Event{}, false
	}
	e := Event{
		Kind:    Address,
		Ifindex: int(index),
		Reason:  fmt.Sprintf("address %v on %s %s", addr, k.name(index), verb(m.Type)),
		Stale:   true,
		early:   true, // also a new one: packets to it are for this host only afterwards
	}
	// Its removal may end routes that prefer it, without a word; the first one of a
	// device that has had others revives next hops by the device.
	network, err := subnet.Prefix(int(is.bits))
	if err == nil && added(m.Type) && addr == subnet && (!broadcast.IsValid() || network.Contains(broadcast)) &&
		(m.Data[0] == unix.AF_INET6 || !k.devices[index].used) {
		e.Scope.Network = network
	}
	return e, true
}

// addressIs stores the state of an address, and reports whether it has changed.
func (k *known) addressIs(key neighbourKey, is addressState, there bool) bool {
	was, old := k.addresses[key]
	if there {
		k.addresses[key] = is
	} else {
		delete(k.addresses, key)
	}
	return !key.addr.IsLinkLocalUnicast() && (old != there || there && was != is)
}

// route evaluates a message about a route. It makes decisions stale, except for routes
// that the kernel adds along with an address, which was announced before. Those to its
// broadcast address come when its device comes up.
func (k *known) route(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofRtMsg {
		return Event{}, false
	}
	bits, table, protocol, kind := m.Data[1], m.Data[4], m.Data[5], m.Data[7]
	flags := binary.NativeEndian.Uint32(m.Data[8:])
	if flags&unix.RTM_F_CLONED != 0 {
		return Event{}, false
	}
	dst := netip.IPv4Unspecified()
	if m.Data[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	index := uint32(0)
	for typ, data := range nlmsg.Attributes(m.Data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(data)
		case unix.RTA_OIF:
			index = native32(data)
		}
	}
	if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsMulticast()) {
		return Event{}, false // every device has those
	}
	network, _ := dst.Prefix(int(bits))
	if table == unix.RT_TABLE_LOCAL && protocol == unix.RTPROT_KERNEL && kind != unix.RTN_BROADCAST &&
		k.isAddress(network, int32(index), kind) {
		return Event{}, false
	}
	e := Event{
		Kind:     Route,
		Ifindex:  int(index),
		Reason:   fmt.Sprintf("route %v/%d %s", dst, bits, verb(m.Type)),
		Topology: true,
		Stale:    true,
		early:    !added(m.Type),
	}
	if bits > 0 {
		e.Scope.Network = network
	}
	return e, true
}

// isAddress reports whether a route to what is local comes with an address of a device: to
// the address, to the network of the loopback device, or, where IPv6 is forwarded, to the
// first address of the network (fib_add_ifaddr in the kernel's net/ipv4/fib_frontend.c,
// addrconf_join_anycast in net/ipv6/addrconf.c).
func (k *known) isAddress(network netip.Prefix, index int32, kind byte) bool {
	const loopback = 1 // LOOPBACK_IFINDEX
	single := network.IsSingleIP()
	if kind == unix.RTN_LOCAL && single {
		_, is := k.addresses[neighbourKey{index, network.Addr()}]
		return is
	}
	ofLoopback := kind == unix.RTN_LOCAL && index == loopback
	anycast := kind == unix.RTN_ANYCAST && single && network.Addr().Is6()
	if !ofLoopback && !anycast {
		return false
	}
	for key, state := range k.addresses {
		if key.ifindex != index {
			continue
		}
		own, err := key.addr.Prefix(int(state.bits))
		if err == nil && own.Addr() == network.Addr() && (anycast || own == network) {
			return true
		}
	}
	return false
}

// sizeofNetconfmsg is the size of struct netconfmsg with padding, which
// attributes follow.
const sizeofNetconfmsg = 4

// Attributes NETCONFA_*.
const (
	netconfaIfindex                  = 1
	netconfaForwarding               = 2
	netconfaRPFilter                 = 3
	netconfaIgnoreRoutesWithLinkdown = 6
)

type netconfKey struct {
	family    byte
	ifindex   int32 // -1 for all devices, -2 for new ones
	attribute uint16
}

// netconfMessage evaluates a message about IP settings of a device: a changed
// value. A new device has values of its own.
func (k *known) netconfMessage(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < sizeofNetconfmsg || m.Data[0] != unix.AF_INET && m.Data[0] != unix.AF_INET6 {
		return Event{}, false
	}
	family, version := m.Data[0], 4
	if family == unix.AF_INET6 {
		version = 6
	}
	attrs := m.Data[sizeofNetconfmsg:]
	var index int32
	for typ, data := range nlmsg.Attributes(attrs) {
		if typ == netconfaIfindex {
			index = int32(native32(data))
		}
	}
	stale := false
	for typ, data := range nlmsg.Attributes(attrs) {
		if typ != netconfaIfindex {
			stale = k.setting(netconfKey{family, index, typ}, data) || stale
		}
	}
	if !added(m.Type) {
		for key := range k.netconf {
			if key.family == family && key.ifindex == index {
				delete(k.netconf, key)
			}
		}
	}
	return Event{
		Kind:    Netconf,
		Ifindex: int(max(index, 0)),
		Reason:  fmt.Sprintf("IPv%d settings of %s", version, k.netconfName(index)),
		Stale:   true,
	}, stale
}

// setting takes a setting up, and reports whether its change concerns decisions.
func (k *known) setting(key netconfKey, data []byte) bool {
	was, old := k.netconf[key]
	is := native32(data)
	k.netconf[key] = is
	d, isDevice := k.devices[key.ifindex]
	fresh := isDevice && !d.used // no packet has come by it
	return old && was != is && (!fresh || key.attribute == netconfaIgnoreRoutesWithLinkdown)
}

// ipv4Settings takes those up of a message about a device. If one like it has set them, they are
// announced by no other (inet_set_link_af in the kernel's net/ipv4/devinet.c).
func (k *known) ipv4Settings(index int32, b []byte) (stale bool) {
	const conf = 1 // IFLA_INET_CONF: numbers in the order of IPV4_DEVCONF_*, which begin with 1
	values := b[unix.SizeofIfInfomsg:]
	for _, within := range [...]uint16{unix.IFLA_AF_SPEC, unix.AF_INET, conf} {
		outer := values
		values = nil
		for typ, data := range nlmsg.Attributes(outer) {
			if typ == within {
				values = data
			}
		}
	}
	for _, at := range [...][2]uint16{{netconfaForwarding, 0}, {netconfaRPFilter, 4 * 7}, {netconfaIgnoreRoutesWithLinkdown, 4 * 28}} {
		if len(values) >= int(at[1])+4 {
			stale = k.setting(netconfKey{unix.AF_INET, index, at[0]}, values[at[1]:at[1]+4]) || stale
		}
	}
	return stale
}

func (k *known) netconfName(index int32) string {
	switch index {
	case -1:
		return "all devices"
	case -2:
		return "new devices"
	default:
		return k.name(index)
	}
}
