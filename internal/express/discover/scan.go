package discover

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// scan is a topology under construction.
type scan struct {
	lenient bool // about devices that the user named
	links   []netlink.Link
	byIndex map[int]readDev
	exits   exits
	// occupied are the bridges with containers, used or not; ported are those
	// with any port that is not loose.
	occupied, ported map[int]bool
	found            Topology
}

func newScan(devices map[int]readDev, exits exits, lenient bool) *scan {
	s := &scan{
		lenient:  lenient,
		links:    sorted(devices),
		byIndex:  devices,
		exits:    exits,
		occupied: make(map[int]bool),
		ported:   make(map[int]bool),
	}
	s.found.Links = s.links
	for _, l := range s.links {
		if bridge := s.bridgeOf(l); bridge != nil {
			if !isLoose(l) {
				s.ported[bridge.Attrs().Index] = true
			}
			if isContainerPort(l) {
				s.occupied[bridge.Attrs().Index] = true
			}
		}
	}
	return s
}

// bridgeOf returns the bridge of a bridge port, nil for other devices.
func (s *scan) bridgeOf(l netlink.Link) netlink.Link {
	if master, ok := s.byIndex[l.Attrs().MasterIndex]; ok && master.Type() == "bridge" {
		return master.Link
	}
	return nil
}

// isContainerPort reports whether a bridge port is a container's: a pair's end
// whose other end is in another namespace.
func isContainerPort(l netlink.Link) bool {
	return (l.Type() == "veth" || l.Type() == Netkit) && l.Attrs().NetNsID >= 0
}

// isLoose reports whether a bridge port is the end of a pair whose other end is in this
// namespace and down: that of a container that starts or has just ended.
func isLoose(l netlink.Link) bool {
	return (l.Type() == "veth" || l.Type() == Netkit) && l.Attrs().NetNsID < 0 && l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0
}

// isRouted reports whether a device is the end of a container's pair that only a
// route leads to.
func (s *scan) isRouted(l netlink.Link) bool {
	is, out := s.exits[l.Attrs().Index]
	return out && is&(further|judging) == 0 && isContainerPort(l) && s.bridgeOf(l) == nil
}

// findPorts finds the bridges, named or with containers, and their ports.
// Unless bridges are named, it also finds the ports of routed containers.
func (s *scan) findPorts(names []string) error {
	chosen := s.occupied
	if !isAuto(names) {
		chosen = make(map[int]bool)
		for _, name := range names {
			l, err := s.byName("bridge", name)
			if err == nil && l.Type() != "bridge" {
				err = fmt.Errorf("bridge %q: the device is a %s, no bridge; \"ip link show type bridge\" lists them", name, l.Type())
			}
			if err != nil {
				if err := s.refuse(name, err); err != nil {
					return err
				}
				continue
			}
			chosen[l.Attrs().Index] = true
			s.occupied[l.Attrs().Index] = true
		}
	}
	roots := make(map[int]string, len(s.byIndex))
	s.found.Qdiscs = roots
	for index, d := range s.byIndex {
		roots[index] = d.qdisc
	}
	for _, l := range s.links {
		a := l.Attrs()
		if chosen[a.Index] {
			s.found.Bridges = append(s.found.Bridges, Bridge{a.Index, a.Name, s.byIndex[a.Index].mst})
		}
		bridge := s.bridgeOf(l)
		routed := isAuto(names) && s.isRouted(l)
		switch {
		case hasPolicy(l) && (routed || bridge != nil && s.occupied[bridge.Attrs().Index]):
			s.skip(l, droppingPair)
		case routed:
			s.addPort(l, l, roots[a.Index])
		case bridge == nil || !isAuto(names) && !chosen[bridge.Attrs().Index]:
		case isContainerPort(l) && s.exits[bridge.Attrs().Index]&judging != 0:
			s.skip(l, judgedRoute)
		case isContainerPort(l):
			s.addPort(l, bridge, roots[a.Index])
		default:
			if reason := whyNoPort(l, s.occupied[bridge.Attrs().Index]); reason != "" {
				s.skip(l, reason)
			}
		}
	}
	return nil
}

// droppingPair is why nothing goes express by a netkit pair with a policy. The kernel
// applies it only while there are no programs at the pair: SCON's would override it
// (drivers/net/netkit.c, netkit_xmit).
const droppingPair = "its netkit pair drops packets (policy blackhole)"

// hasPolicy reports whether a device is an end of a netkit pair that drops packets, in
// either direction.
func hasPolicy(l netlink.Link) bool {
	kit, ok := l.(*netlink.Netkit)
	return ok && (kit.Policy != netlink.NETKIT_POLICY_FORWARD || kit.PeerPolicy != netlink.NETKIT_POLICY_FORWARD)
}

// addPort adds a port. inside is its bridge or, if the container is routed, the port.
func (s *scan) addPort(l, inside netlink.Link, qdisc string) {
	a := l.Attrs()
	var bridge Bridge
	if inside != l {
		bridge = Bridge{inside.Attrs().Index, inside.Attrs().Name, s.byIndex[inside.Attrs().Index].mst}
	}
	var mac [6]byte
	if to := inside.Attrs().HardwareAddr; len(to) == len(mac) {
		mac = [6]byte(to)
	}
	var packets uint64
	if a.Statistics != nil {
		packets = a.Statistics.RxPackets + a.Statistics.TxPackets
	}
	s.found.Ports = append(s.found.Ports, Port{
		Index:     a.Index,
		Name:      a.Name,
		Bridge:    bridge,
		MAC:       mac,
		MTU:       a.MTU,
		PeerNSID:  a.NetNsID,
		PeerIndex: a.ParentIndex,
		Up:        a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0,
		Qdisc:     qdisc,
		Kind:      l.Type(),
		Packets:   packets,
	})
}

// whyNoPort returns why packets of a bridge port do not go express; "" if the
// bridge has no containers and the port cannot be mistaken for a container's.
func whyNoPort(l netlink.Link, occupied bool) string {
	switch l.Type() {
	case "veth", Netkit:
		return l.Type() + " with both ends in this namespace"
	case "tuntap", "tun":
		return "tap port: a machine of its own is behind it, no container"
	}
	if occupied {
		return "it leads out of the bridge of containers: what is bridged by it goes regular"
	}
	return ""
}

// judgedRoute is why nothing goes express by a device with such a route.
const judgedRoute = "a route that leads there has a BPF program or IOAM (encap), which must see every packet"

// findUplinks finds the uplinks among the devices that routes use.
func (s *scan) findUplinks() {
	for _, l := range s.links {
		index := l.Attrs().Index
		is, out := s.exits[index]
		switch {
		case !out || l.Attrs().Flags&net.FlagLoopback != 0:
		case is&further == 0 && isContainerPort(l): // its port
		case s.bridgeOf(l) != nil || s.occupied[index]:
		case l.Type() == "bridge" && !s.ported[index]: // leads nowhere
		case is&judging != 0:
			s.skip(l, judgedRoute)
		default:
			s.addUplink(l)
		}
	}
}

// nameUplinks adds the uplinks that the user named.
func (s *scan) nameUplinks(names []string) error {
	for _, name := range names {
		l, err := s.byName("uplink", name)
		if err != nil {
			if err := s.refuse(name, err); err != nil {
				return err
			}
			continue
		}
		s.addUplink(l)
	}
	slices.SortFunc(s.found.Uplinks, func(a, b Uplink) int { return a.Index - b.Index })
	return nil
}

// addUplink adds a device as an uplink if packets can go express by it.
func (s *scan) addUplink(l netlink.Link) {
	a := l.Attrs()
	u := Uplink{Index: a.Index, Name: a.Name, MTU: a.MTU, MAC: a.HardwareAddr, Spread: s.exits[a.Index]&spread != 0}
	if isFlowBased(l) {
		s.skip(l, byRoute)
		return
	}
	if v, ok := l.(*netlink.Vxlan); ok && a.NetNsID < 0 {
		u.TunnelPort = uint16(v.Port)
	}
	if a.EncapType != "ether" || len(a.HardwareAddr) != 6 {
		u.MAC = nil
		if why := whyNotBare(l); why != "" {
			s.skip(l, why)
			return
		}
	}
	s.found.Uplinks = append(s.found.Uplinks, u)
}

// isFlowBased reports whether a tunnel device takes the destination from the
// route of each packet, and drops packets without one.
func isFlowBased(l netlink.Link) bool {
	switch l := l.(type) {
	case *netlink.Vxlan:
		return l.FlowBased
	case *netlink.Geneve:
		return l.FlowBased
	case *netlink.Gretap:
		return l.FlowBased || len(l.Remote) == 0 || l.Remote.IsUnspecified()
	default:
		return false
	}
}

func (s *scan) skip(l netlink.Link, reason string) {
	s.found.Skipped = append(s.found.Skipped, Skipped{l.Attrs().Name, reason})
}

// refuse returns what is wrong with a named device, or skips it.
func (s *scan) refuse(name string, err error) error {
	if s.lenient {
		s.found.Skipped = append(s.found.Skipped, Skipped{name, err.Error()})
		return nil
	}
	return err
}

// byName returns a device that the user named as a bridge or an uplink.
func (s *scan) byName(role, name string) (netlink.Link, error) {
	for _, l := range s.links {
		if l.Attrs().Name == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf(`%s %q: no such device; "ip link" lists them`, role, name)
}
