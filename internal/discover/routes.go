package discover

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/nlmsg"
)

// exits are the devices that routes go out of, by number. The value tells
// whether one of the routes leads further than to a single address on the link.
type exits map[int]bool

// readExits reads the unicast routes of all tables. There may be very many: it
// keeps none of them.
func readExits() (exits, error) {
	sock, err := nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_ROUTE})
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	found := make(exits)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err = sock.Request(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Dump},
			Data:   append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...),
		}, found.add)
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.EOPNOTSUPP)) { // a kernel without IPv6
			return nil, err
		}
	}
	return found, nil
}

// add takes up the devices of one route. What is too short to be a route adds
// none.
func (e exits) add(m nlmsg.Message) {
	if m.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
		return
	}
	const bits, typ, flags = 1, 7, 8 // offsets in struct rtmsg
	if m.Data[typ] != unix.RTN_UNICAST || binary.NativeEndian.Uint32(m.Data[flags:])&unix.RTM_F_CLONED != 0 {
		return
	}
	further := m.Data[bits] != 32
	if m.Data[0] == unix.AF_INET6 {
		further = m.Data[bits] != 128
	}
	var out int
	var hops []byte
	for attr, data := range nlmsg.Attributes(m.Data[unix.SizeofRtMsg:]) {
		switch attr {
		case unix.RTA_DST:
			dst, _ := netip.AddrFromSlice(data)
			if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsMulticast()) {
				return // each device has those
			}
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			further = true
		case unix.RTA_OIF:
			if len(data) == 4 {
				out = int(binary.NativeEndian.Uint32(data))
			}
		case unix.RTA_MULTIPATH:
			hops = data
		}
	}
	e.addDevice(out, further)
	for len(hops) >= unix.SizeofRtNexthop {
		e.addDevice(int(binary.NativeEndian.Uint32(hops[4:])), further)
		n := int(binary.NativeEndian.Uint16(hops))
		if n < unix.SizeofRtNexthop || n > len(hops) {
			return
		}
		hops = hops[n:]
	}
}

func (e exits) addDevice(index int, further bool) {
	if index != 0 {
		e[index] = e[index] || further
	}
}
