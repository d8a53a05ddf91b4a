package discover

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// exits are the devices that routes use, by ifindex, and what is known of the
// routes.
type exits map[int]exit

type exit uint8

const (
	further exit = 1 << iota // a route leads further than to one address on the link
	judging                  // a route may treat each packet differently
	spread                   // the sender may choose whether packets leave by it: it has one of several next hops
	narrow                   // a route has an MTU below Wide
)

// Wide is the MTU of a path on which nothing is said about its packets' lengths, bytes: the
// least that IPv6 allows.
const Wide = 1280

// metrics returns what is known of a route with these metrics.
func metrics(b []byte) exit {
	for attr, data := range nlmsg.Attributes(b) {
		if attr == unix.RTAX_MTU && len(data) == 4 && binary.NativeEndian.Uint32(data) < Wide {
			return narrow
		}
	}
	return 0
}

// encapsulation returns what is known of a route that encapsulates packets
// (enum lwtunnel_encap_types). Most kinds change every packet, so that none
// leaves as it entered; BPF programs and IOAM, which may mark one of many,
// need not.
func encapsulation(kind []byte) exit {
	const bpf, ioam6 = 6, 9
	if len(kind) != 2 {
		return 0
	}
	if k := binary.NativeEndian.Uint16(kind); k == bpf || k == ioam6 {
		return judging
	}
	return 0
}

// readExits reads the unicast routes of all tables, and the next-hop objects that they lead
// to. There may be very many routes; it keeps none. idle is the shortest idle timer of their
// resilient groups, 0 if there is none.
func readExits(sock *nlmsg.Requests) (found exits, idle time.Duration, err error) {
	hops, err := readNexthops(sock)
	if err != nil {
		return nil, 0, err
	}
	found = make(exits)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := sock.Request(nlmsg.Request{
			Type: unix.RTM_GETROUTE, Flags: unix.NLM_F_DUMP,
			Data: append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...),
		}, func(m nlmsg.Message) { found.add(m, hops) })
		if err != nil && !(family == unix.AF_INET6 && errors.Is(err, unix.EOPNOTSUPP)) { // a kernel without IPv6
			return nil, 0, err
		}
	}
	labels, err := readLabels(sock)
	if err != nil {
		return nil, 0, err
	}
	for index := range found {
		if labels {
			found[index] |= judging
		}
	}
	return found, hops.idle(), nil
}

// readLabels reports whether a routing rule of IPv6 chooses by the flow label, which either
// sender of a connection's packets may change (Linux 6.14, net/ipv6/fib6_rules.c).
func readLabels(sock *nlmsg.Requests) (is bool, err error) {
	const sizeofRuleHeader, flowLabel = 12, 26 // struct fib_rule_hdr, FRA_FLOWLABEL
	err = sock.Request(nlmsg.Request{
		Type: unix.RTM_GETRULE, Flags: unix.NLM_F_DUMP,
		Data: append([]byte{unix.AF_INET6}, make([]byte, sizeofRuleHeader-1)...),
	}, func(m nlmsg.Message) {
		for typ := range nlmsg.Attributes(m.Data[min(sizeofRuleHeader, len(m.Data)):]) {
			is = is || typ == flowLabel
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6, or without rules
		err = nil
	}
	return is, err
}

// add adds the devices of one route. It ignores messages that are too short.
func (e exits) add(m nlmsg.Message, hops nexthops) {
	if m.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
		return
	}
	const bits, typ, flags = 1, 7, 8 // offsets in struct rtmsg
	if m.Data[typ] != unix.RTN_UNICAST || binary.NativeEndian.Uint32(m.Data[flags:])&unix.RTM_F_CLONED != 0 {
		return
	}
	single := byte(32)
	if m.Data[0] == unix.AF_INET6 {
		single = 128
	}
	var is exit
	if m.Data[bits] != single {
		is = further
	}
	var out int
	var several []byte
	var object *nexthop
	for attr, data := range nlmsg.Attributes(m.Data[unix.SizeofRtMsg:]) {
		switch attr {
		case unix.RTA_DST:
			dst, _ := netip.AddrFromSlice(data)
			if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsMulticast()) {
				return // every device has those
			}
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			is |= further
		case unix.RTA_ENCAP_TYPE:
			is |= encapsulation(data)
		case unix.RTA_METRICS:
			is |= metrics(data)
		case unix.RTA_OIF:
			if len(data) == 4 {
				out = int(binary.NativeEndian.Uint32(data))
			}
		case unix.RTA_MULTIPATH:
			several = data
		case rtaNexthop:
			object = hops.get(data)
		}
	}
	e.addDevice(out, is)
	e.addSeveral(several, is|spread)
	hops.addTo(e, object, is)
}

// addSeveral adds the devices of the next hops of one route.
func (e exits) addSeveral(hops []byte, is exit) {
	for len(hops) >= unix.SizeofRtNexthop {
		index, n := int(binary.NativeEndian.Uint32(hops[4:])), int(binary.NativeEndian.Uint16(hops))
		e.addDevice(index, is)
		if n < unix.SizeofRtNexthop || n > len(hops) {
			return
		}
		for attr, data := range nlmsg.Attributes(hops[unix.SizeofRtNexthop:n]) {
			if attr == unix.RTA_ENCAP_TYPE {
				e.addDevice(index, encapsulation(data))
			}
		}
		hops = hops[n:]
	}
}

func (e exits) addDevice(index int, is exit) {
	if index != 0 {
		e[index] |= is
	}
}
