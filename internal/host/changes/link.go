package changes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// device is what decisions and the topology depend on.
type device struct {
	name      string
	up        bool // administratively, with carrier
	noARP     bool // the kernel resolves no neighbours, nor announces those that it makes
	used      bool // has been operational: routes may wait until it is again
	operstate uint8
	mtu       uint32
	address   string // link-layer
	master    uint32
	bridged   bool // the master is a bridge
	group     uint32
	xdp       string // its XDP programs
	settings  string // of a tunnel, a netkit pair or a bridge, or of what takes
	tunnel    bool   // it takes packets out of others
	takes     bool   // it takes packets from the device that it is on, up or not
	macvlan   bool   // it may begin to
	peer      uint32 // ifindex of a veth's other end, or of the lower device
	peerNSID  uint32 // ID of its namespace
}

// port is a bridge port: its state and flags, by attribute, and from backup on what packets
// leave by while it has no carrier.
type port [64]byte

const backup = 56

// forwards reports whether a bridge port forwards packets.
func (p port) forwards() bool {
	const forwarding = 3 // BR_STATE_FORWARDING
	return p[unix.IFLA_BRPORT_STATE] == forwarding
}

// link evaluates a message about a device or, in the bridge's family, about a
// port.
func (k *known) link(m nlmsg.Message) (Event, bool) {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return Event{}, false
	}
	index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
	if m.Data[0] == unix.AF_BRIDGE {
		return k.bridgePort(index, m)
	}
	was, old := k.devices[index]
	e := Event{Kind: Link, Ifindex: int(index), Topology: true}
	set := added(m.Type) && k.ipv4Settings(index, m.Data)
	if !added(m.Type) {
		delete(k.devices, index)
		delete(k.ports, index)
		e.Reason = fmt.Sprintf("device %s removed", was.name)
		e.Stale, e.Gone = was.up, true
		return e, old
	}
	is := parseDevice(m.Data)
	is.used = was.used || is.up && is.operstate == operUp
	k.devices[index] = is
	switch {
	case !old:
		e.Reason, e.Stale = fmt.Sprintf("device %s appeared", is.name), is.takes
	case is == was && !set:
		return Event{}, false
	case is == was:
		return Event{Kind: Netconf, Ifindex: int(index), Reason: "IPv4 settings of " + is.name, Stale: true}, true
	default:
		diff := was.diff(is)
		e.Reason = fmt.Sprintf("device %s: %s", is.name, diff)
		// No decision uses a device that was down. A device that comes up again may
		// activate routes; a bridge port only adds a destination, unless it is a tunnel.
		if was.xdp != is.xdp {
			e.Kind = Filter
		}
		e.Stale = set || diff != otherEnd && (was.up || is.up && (is.tunnel || !is.bridged)) && !k.onlyAdds(index, was, is)
		// The kernel ends and revives next hops by a device without a word, after it has
		// announced that (__dev_notify_flags in net/core/dev.c); none is by a bridge's port.
		if e.Stale && !set && is.bridged && was.goesDown(is) {
			e.Scope = Scope{Ports: [2]int{int(index)}}
		} else {
			e.early = e.Stale && was.up != is.up
		}
	}
	return e, true
}

// goesDown reports whether nothing changes of a device but that it, or its
// operational state, is down, and perhaps its other end gone.
func (d device) goesDown(to device) bool {
	if to.up && !d.up || to.operstate == operUp && d.operstate != operUp {
		return false
	}
	d.up, d.operstate, d.peer, d.peerNSID = to.up, to.operstate, to.peer, to.peerNSID
	return d == to
}

// States of IF_OPER_*.
const (
	operUnknown = 0
	operUp      = 6
)

// onlyAdds reports whether nothing changes of a device but that it comes up or is
// operational, and that can only add a destination: it is a bridge port, or no route
// can have waited for it. A tunnel takes packets that another one had.
func (k *known) onlyAdds(index int32, was, is device) bool {
	waits := was.used || k.ignoresLinkdown(index)
	if !was.up || is.operstate == operUp {
		was.operstate = is.operstate
	}
	was.used, was.up = is.used, was.up || is.up
	return was == is && !is.tunnel && (is.bridged || !waits)
}

// ignoresLinkdown reports whether routes by a device that is up do not count as long as
// it has no carrier (ignore_routes_with_linkdown).
func (k *known) ignoresLinkdown(index int32) bool {
	for _, family := range [...]byte{unix.AF_INET, unix.AF_INET6} {
		for _, of := range [...]int32{index, -1} {
			if k.netconf[netconfKey{family, of, netconfaIgnoreRoutesWithLinkdown}] != 0 {
				return true
			}
		}
	}
	return false
}

// otherEnd is the difference that concerns only the topology.
const otherEnd = "other end"

// diff returns what has changed of a device that decisions depend on.
func (d device) diff(to device) string {
	var what []string
	if d.name != to.name { // rules name devices
		what = append(what, "was "+d.name)
	}
	switch {
	case to.up && !d.up:
		what = append(what, "up")
	case d.up && !to.up:
		what = append(what, "down")
	}
	if d.operstate != to.operstate {
		what = append(what, fmt.Sprintf("operational state %d", to.operstate))
	}
	if d.mtu != to.mtu {
		what = append(what, fmt.Sprintf("MTU %d", to.mtu))
	}
	if d.address != to.address {
		what = append(what, fmt.Sprintf("address % x", to.address))
	}
	if d.master != to.master {
		what = append(what, fmt.Sprintf("master %d", to.master))
	}
	if d.group != to.group {
		what = append(what, fmt.Sprintf("group %d", to.group))
	}
	if d.xdp != to.xdp {
		what = append(what, "XDP program")
	}
	if d.noARP != to.noARP {
		what = append(what, "ARP")
	}
	if d.settings != to.settings {
		what = append(what, "settings")
	}
	if what == nil {
		return otherEnd
	}
	return strings.Join(what, ", ")
}

func parseDevice(b []byte) (d device) {
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	flags := binary.NativeEndian.Uint32(b[8:])
	d.up, d.noARP = flags&up == up, flags&unix.IFF_NOARP != 0
	d.operstate = operUp   // also if it has no such state
	d.peerNSID = 1<<32 - 1 // none
	for typ, data := range nlmsg.Attributes(b[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			d.name = string(bytes.TrimRight(data, "\x00"))
		case unix.IFLA_OPERSTATE:
			if len(data) == 1 && data[0] != operUnknown {
				d.operstate = data[0]
			}
		case unix.IFLA_MTU:
			d.mtu = native32(data)
		case unix.IFLA_ADDRESS:
			d.address = string(data)
		case unix.IFLA_MASTER:
			d.master = native32(data)
		case unix.IFLA_GROUP:
			d.group = native32(data)
		case unix.IFLA_XDP:
			d.xdp = string(data)
		case unix.IFLA_LINK:
			d.peer = native32(data)
		case unix.IFLA_LINK_NETNSID:
			d.peerNSID = native32(data)
		case unix.IFLA_LINKINFO:
			d.parseSettings(data)
		}
	}
	return d
}

// parseSettings parses the settings that decisions depend on: all of a tunnel, of a netkit pair
// and of a macvlan that takes what is for others, those of a bridge without its counters and
// timers, none of other devices; and whether the device is a bridge's port.
func (d *device) parseSettings(info []byte) {
	var kind, settings string
	for typ, data := range nlmsg.Attributes(info) {
		switch typ {
		case unix.IFLA_INFO_KIND:
			kind = string(bytes.TrimRight(data, "\x00"))
		case unix.IFLA_INFO_DATA:
			settings = string(data)
		case unix.IFLA_INFO_SLAVE_KIND:
			d.bridged = string(bytes.TrimRight(data, "\x00")) == "bridge"
		}
	}
	switch kind {
	case "vxlan", "ipip", "gre", "ip6tnl", "ip6gre":
		d.settings, d.tunnel = settings, true
	case "netkit":
		d.settings = settings
	case "macvlan", "macvtap":
		d.macvlan = true
		const mode, passthru, source = 1, 8, 16 // IFLA_MACVLAN_MODE, MACVLAN_MODE_*
		for typ, data := range nlmsg.Attributes([]byte(settings)) {
			if typ == mode && native32(data)&(passthru|source) != 0 {
				d.settings, d.takes = settings, true
			}
		}
	case "bridge":
		d.settings = bridgeSettings([]byte(settings))
	}
}

// bridgeSettings are the attributes that say which packets a bridge separates
// by VLAN or spanning tree, whether Netfilter sees them, and what it learns.
func bridgeSettings(data []byte) string {
	const maxLearned = 49 // IFLA_BR_FDB_MAX_LEARNED
	var b strings.Builder
	for typ, value := range nlmsg.Attributes(data) {
		switch typ {
		case unix.IFLA_BR_VLAN_FILTERING, unix.IFLA_BR_VLAN_PROTOCOL, unix.IFLA_BR_NF_CALL_IPTABLES, unix.IFLA_BR_NF_CALL_IP6TABLES,
			unix.IFLA_BR_MULTI_BOOLOPT, unix.IFLA_BR_AGEING_TIME, maxLearned:
			fmt.Fprintf(&b, "%d=%x ", typ, value)
		}
	}
	return b.String()
}

// bridgePort evaluates a message about a bridge port: a change of one that
// forwards.
func (k *known) bridgePort(index int32, m nlmsg.Message) (Event, bool) {
	was := k.ports[index]
	var is port
	if added(m.Type) {
		is = parsePort(m.Data)
		k.ports[index] = is
	} else {
		delete(k.ports, index)
	}
	e := Event{
		Kind:    Link,
		Ifindex: int(index),
		Reason:  fmt.Sprintf("bridge port %s: state or flags", k.name(index)),
		Stale:   true, Topology: true,
		Scope: Scope{Ports: [2]int{int(index)}},
	}
	if [8]byte(was[backup:]) != [8]byte(is[backup:]) { // the port may be down
		e.Scope = Scope{}
		return e, true
	}
	return e, was.forwards() && is != was
}

func parsePort(b []byte) (p port) {
	for typ, data := range nlmsg.Attributes(b[unix.SizeofIfInfomsg:]) {
		if typ != unix.IFLA_PROTINFO {
			continue
		}
		for typ, data := range nlmsg.Attributes(data) {
			// Spanning tree's own flags change with its packets.
			switch {
			case typ == unix.IFLA_BRPORT_BACKUP_PORT:
				copy(p[backup:backup+4], data)
			case typ == unix.IFLA_BRPORT_BACKUP_NHID:
				copy(p[backup+4:], data)
			case len(data) == 1 && int(typ) < backup &&
				typ != unix.IFLA_BRPORT_TOPOLOGY_CHANGE_ACK && typ != unix.IFLA_BRPORT_CONFIG_PENDING:
				p[typ] = data[0]
			}
		}
	}
	return p
}

// vlan evaluates a message about the VLANs of a bridge or of one of its ports.
// Those that a port gets when it joins the bridge concern no decision yet.
func (k *known) vlan(m nlmsg.Message) (Event, bool) {
	const sizeofVlanMsg = 8 // struct br_vlan_msg
	if len(m.Data) < sizeofVlanMsg {
		return Event{}, false
	}
	index := int32(binary.NativeEndian.Uint32(m.Data[4:]))
	e := Event{
		Kind:    Link,
		Ifindex: int(index),
		Reason:  fmt.Sprintf("VLANs of %s %s", k.name(index), verb(m.Type)),
		Stale:   true,
	}
	d := k.devices[index]
	p, isPort := k.ports[index]
	if isPort || d.bridged { // one that leaves its bridge loses them after the port
		e.Scope.Ports[0] = int(index)
	}
	return e, isPort && p.forwards() || !isPort && d.up
}

// name is the name of a device, for logs.
func (k *known) name(index int32) string {
	if d, ok := k.devices[index]; ok {
		return d.name
	}
	return fmt.Sprintf("device %d", index)
}
