package discover

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// bridging is what is known of a bridge, or of a port of one, beyond what package netlink
// reads.
type bridging struct {
	mst      bool // as Bridge.MST
	filters  bool // VLANs (vlan_filtering)
	forgets  bool // every MAC address (ageing_time 0)
	limited  bool // it learns so many MAC addresses and no more (fdb_max_learned)
	calls4   bool // iptables, whatever the sysctl says (nf_call_iptables)
	calls6   bool // ip6tables
	unlearnt bool // a port: the bridge learns no MAC address there (learning off)
}

// bridgingOf reads that of a link's message (net/bridge/br_netlink.c, br_fill_info and
// br_port_fill_attrs).
func bridgingOf(link []byte) (b bridging) {
	var kind, slaveKind string
	for typ, info := range nlmsg.Attributes(link[unix.SizeofIfInfomsg:]) {
		if typ != unix.IFLA_LINKINFO {
			continue
		}
		for typ, data := range nlmsg.Attributes(info) { // each kind is before its data
			switch {
			case typ == unix.IFLA_INFO_KIND:
				kind = text(data)
			case typ == unix.IFLA_INFO_SLAVE_KIND:
				slaveKind = text(data)
			case typ == unix.IFLA_INFO_DATA && kind == "bridge":
				b.readBridge(data)
			case typ == unix.IFLA_INFO_SLAVE_DATA && slaveKind == "bridge":
				b.readPort(data)
			}
		}
	}
	return b
}

func text(data []byte) string { return string(bytes.TrimRight(data, "\x00")) }

func (b *bridging) readBridge(data []byte) {
	const (
		maxLearned = 49     // IFLA_BR_FDB_MAX_LEARNED (Linux 6.7)
		mstEnable  = 1 << 2 // BR_BOOLOPT_MST_ENABLE, in optval of struct br_boolopt_multi
	)
	for typ, value := range nlmsg.Attributes(data) {
		switch typ {
		case unix.IFLA_BR_MULTI_BOOLOPT:
			b.mst = len(value) >= 4 && binary.NativeEndian.Uint32(value)&mstEnable != 0
		case unix.IFLA_BR_VLAN_FILTERING:
			b.filters = isSet(value)
		case unix.IFLA_BR_AGEING_TIME:
			b.forgets = !isSet(value)
		case maxLearned:
			b.limited = isSet(value)
		case unix.IFLA_BR_NF_CALL_IPTABLES:
			b.calls4 = isSet(value)
		case unix.IFLA_BR_NF_CALL_IP6TABLES:
			b.calls6 = isSet(value)
		}
	}
}

func (b *bridging) readPort(data []byte) {
	for typ, value := range nlmsg.Attributes(data) {
		if typ == unix.IFLA_BRPORT_LEARNING {
			b.unlearnt = !isSet(value)
		}
	}
}

// isSet reports whether a number is not 0.
func isSet(value []byte) bool {
	return slices.ContainsFunc(value, func(b byte) bool { return b != 0 })
}

// leadsOut reports whether a bridge port may lead out of a bridge of containers: behind it
// is a network, not one machine.
func leadsOut(l netlink.Link) bool {
	return !slices.Contains([]string{"veth", Netkit, "tuntap", "tun"}, l.Type())
}

// addBridged adds a port of a containers' bridge that leads out of it as an uplink, if what
// the bridge forwards by it can go express. What leaves by it is only compared with what
// comes from there if the bridge learns all MAC addresses (bpf/lib/bridged.h), of one VLAN.
func (s *scan) addBridged(l, bridge netlink.Link) {
	b, name := s.byIndex[bridge.Attrs().Index].bridging, bridge.Attrs().Name
	unlearnt := slices.IndexFunc(s.links, func(port netlink.Link) bool {
		a := port.Attrs()
		return a.MasterIndex == bridge.Attrs().Index && s.byIndex[a.Index].unlearnt
	})
	why := ""
	switch {
	case !s.uplinks[l.Attrs().Name] && !slices.Contains([]string{"device", "vlan", "bond"}, l.Type()): // a card has no kind
		why = fmt.Sprintf("as by all devices but cards, VLANs and bonds (it is a %s)", l.Type())
	case b.filters:
		why = "since " + name + " filters VLANs (vlan_filtering)"
	case b.forgets:
		why = "since " + name + " forgets MAC addresses at once (ageing_time 0)"
	case b.limited:
		why = "since " + name + " learns only so many MAC addresses (fdb_max_learned)"
	case unlearnt >= 0:
		why = "since " + name + " learns no MAC addresses at " + s.links[unlearnt].Attrs().Name + " (learning off)"
	}
	if why != "" {
		s.skip(l, ledOut+", "+why)
		return
	}
	a := l.Attrs()
	s.found.Uplinks = append(s.found.Uplinks, Uplink{
		Index: a.Index, Name: a.Name, MTU: a.MTU, MAC: a.HardwareAddr,
		Bridge: Bridge{bridge.Attrs().Index, name, b.mst},
	})
}

// ledOut is what becomes of packets by a device that is not hooked.
const ledOut = "it leads out of the bridge of containers: what is bridged by it goes regular"
