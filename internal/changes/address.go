package changes

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/nlmsg"
)

// address judges a message about an IPv4 address: always stale.
func (k *known) address(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return Event{}, false
	}
	index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
	var addr netip.Addr
	for typ, data := range nlmsg.Attributes(m.Data[unix.SizeofIfAddrmsg:]) {
		if typ == unix.IFA_LOCAL {
			addr, _ = netip.AddrFromSlice(data)
		}
	}
	return Event{
		Kind:    Address,
		Ifindex: int(index),
		Reason:  fmt.Sprintf("address %v on %s %s", addr, k.name(index), verb(m.Type)),
		Stale:   true,
	}, true
}

// route judges a message about an IPv4 route: stale, but for those that the
// kernel keeps along with an address.
func (k *known) route(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofRtMsg {
		return Event{}, false
	}
	bits, table, protocol := m.Data[1], m.Data[4], m.Data[5]
	flags := binary.NativeEndian.Uint32(m.Data[8:])
	if table == unix.RT_TABLE_LOCAL && protocol == unix.RTPROT_KERNEL || flags&unix.RTM_F_CLONED != 0 {
		return Event{}, false
	}
	dst := netip.IPv4Unspecified()
	index := uint32(0)
	for typ, data := range nlmsg.Attributes(m.Data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(data)
		case unix.RTA_OIF:
			index = native32(data)
		}
	}
	return Event{
		Kind:     Route,
		Ifindex:  int(index),
		Reason:   fmt.Sprintf("route %v/%d %s", dst, bits, verb(m.Type)),
		Topology: true,
		Stale:    true,
	}, true
}

// sizeofNetconfmsg is what attributes follow: struct netconfmsg, padded.
const sizeofNetconfmsg = 4

type netconfKey struct {
	ifindex   int32 // -1 all devices, -2 those to come
	attribute uint16
}

// netconfMessage judges a message about IPv4's settings on a device: a value
// that differs from the one before. A new device brings values of its own.
func (k *known) netconfMessage(m nlmsg.Message) (Event, bool) {
	const netconfaIfindex = 1
	if len(m.Data) < sizeofNetconfmsg || m.Data[0] != unix.AF_INET {
		return Event{}, false
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
		if typ == netconfaIfindex {
			continue
		}
		key, is := netconfKey{index, typ}, native32(data)
		if was, old := k.netconf[key]; old && was != is {
			stale = true
		}
		k.netconf[key] = is
	}
	if !added(m.Type) {
		for key := range k.netconf {
			if key.ifindex == index {
				delete(k.netconf, key)
			}
		}
	}
	return Event{
		Kind:    Netconf,
		Ifindex: int(max(index, 0)),
		Reason:  fmt.Sprintf("IPv4 settings of %s", k.netconfName(index)),
		Stale:   true,
	}, stale
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
