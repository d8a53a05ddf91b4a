package discover

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// scan is a topology under construction.
type scan struct {
	lenient bool            // about devices that the user named
	uplinks map[string]bool // that the user named: no containers' ports
	auto    bool            // the user named none
	links   []netlink.Link
	byIndex map[int]readDev
	exits   exits
	// occupied are the bridges with containers, used or not; ported are those
	// with any port that is not loose.
	occupied, ported map[int]bool
	chosen           map[int]bool // the bridges whose ports count
	found            Topology
}

func newScan(devices map[int]readDev, exits exits, opts Options) *scan {
	s := &scan{
		lenient:  opts.Lenient,
		auto:     isAuto(opts.Uplinks),
		uplinks:  make(map[string]bool),
		links:    sorted(devices),
		byIndex:  devices,
		exits:    exits,
		occupied: make(map[int]bool),
		ported:   make(map[int]bool),
	}
	s.found.Links = s.links
	for _, name := range opts.Uplinks {
		s.uplinks[name] = !s.auto
	}
	for _, l := range s.links {
		if bridge := s.bridgeOf(l); bridge != nil {
			if !isLoose(l) {
				s.ported[bridge.Attrs().Index] = true
			}
			if s.isContainerPort(l) {
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
// whose other end is in another namespace, and that is no uplink.
func (s *scan) isContainerPort(l netlink.Link) bool {
	return !s.uplinks[l.Attrs().Name] && (l.Type() == "veth" || l.Type() == Netkit) && l.Attrs().NetNsID >= 0
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
	return out && is&(further|judging) == 0 && s.isContainerPort(l) && s.bridgeOf(l) == nil
}

// findPorts finds the bridges, named or with containers, and their ports.
// Unless bridges are named, it also finds the ports of routed containers.
func (s *scan) findPorts(names []string) error {
	s.chosen = s.occupied
	if !isAuto(names) {
		s.chosen = make(map[int]bool)
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
			s.chosen[l.Attrs().Index] = true
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
		if s.chosen[a.Index] {
			s.found.Bridges = append(s.found.Bridges, Bridge{a.Index, a.Name, s.byIndex[a.Index].mst})
		}
		bridge := s.bridgeOf(l)
		routed := isAuto(names) && s.isRouted(l)
		switch {
		case hasPolicy(l) && (routed || bridge != nil && s.occupied[bridge.Attrs().Index]):
			s.skip(l, droppingPair)
		case routed:
			s.addPort(l, l, roots[a.Index])
		case bridge == nil || s.uplinks[a.Name] || !isAuto(names) && !s.chosen[bridge.Attrs().Index]:
		case s.isContainerPort(l) && s.exits[bridge.Attrs().Index]&judging != 0:
			s.skip(l, judgedRoute)
		case s.isContainerPort(l):
			s.addPort(l, bridge, roots[a.Index])
		default:
			if !leadsOut(l) {
				s.skip(l, whyNoPort(l))
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
		Calls4:    s.byIndex[bridge.Index].calls4,
		Calls6:    s.byIndex[bridge.Index].calls6,
		Wide:      s.isWide(inside),
	})
}

// isWide reports whether IP sends packets of Wide bytes by a device as they are.
func (s *scan) isWide(l netlink.Link) bool {
	return l.Attrs().MTU >= Wide && s.exits[l.Attrs().Index]&narrow == 0
}

// whyNoPort returns why packets of a bridge port do not go express that could be mistaken
// for a container's.
func whyNoPort(l netlink.Link) string {
	if l.Type() == "veth" || l.Type() == Netkit {
		return l.Type() + " with both ends in this namespace"
	}
	return "tap port: a machine of its own is behind it, no container"
}

// judgedRoute is why nothing goes express by a device with such a route.
const judgedRoute = "a route that leads there has a BPF program or IOAM (encap), or a routing rule chooses by the flow label: each packet must be seen"

// findBridged finds the uplinks among the ports of containers' bridges.
func (s *scan) findBridged() {
	for _, l := range s.links {
		bridge := s.bridgeOf(l)
		named := s.uplinks[l.Attrs().Name]
		switch {
		case bridge == nil || !s.chosen[bridge.Attrs().Index] || !s.occupied[bridge.Attrs().Index]:
		case named || s.auto && leadsOut(l):
			s.addBridged(l, bridge)
		case leadsOut(l):
			s.skip(l, ledOut+", since it is not among the uplinks in the configuration")
		}
	}
}

// findUplinks finds the uplinks among the devices that routes use.
func (s *scan) findUplinks() {
	for _, l := range s.links {
		index := l.Attrs().Index
		is, out := s.exits[index]
		switch {
		case !out || l.Attrs().Flags&net.FlagLoopback != 0:
		case is&further == 0 && s.isContainerPort(l): // its port
		case s.bridgeOf(l) != nil || s.occupied[index]:
		case l.Type() == "bridge" && !s.ported[index]: // leads nowhere
		case is&judging != 0:
			s.skip(l, judgedRoute)
		default:
			s.addUplink(l)
		}
	}
}

// nameUplinks adds the uplinks that the user named and that are no ports of a containers'
// bridge.
func (s *scan) nameUplinks(names []string) error {
	for _, name := range names {
		l, err := s.byName("uplink", name)
		if err != nil {
			if err := s.refuse(name, err); err != nil {
				return err
			}
			continue
		}
		if bridge := s.bridgeOf(l); bridge == nil || !s.occupied[bridge.Attrs().Index] || !s.chosen[bridge.Attrs().Index] {
			s.addUplink(l)
		}
	}
	return nil
}

// addUplink adds a device as an uplink if packets can go express by it.
func (s *scan) addUplink(l netlink.Link) {
	a := l.Attrs()
	u := Uplink{Index: a.Index, Name: a.Name, MTU: a.MTU, MAC: a.HardwareAddr, Spread: s.exits[a.Index]&spread != 0, Wide: s.isWide(l)}
	if isFlowBased(l) {
		s.skip(l, byRoute)
		return
	}
	if v, ok := l.(*netlink.Vxlan); ok && a.NetNsID < 0 {
		u.TunnelPort = uint16(v.Port)
	}
	if tunnel, ok := l.(*netlink.Iptun); ok && a.NetNsID < 0 && tunnel.EncapType == 0 {
		u.IPIP, u.Below, u.ByRoute = true, a.ParentIndex, isByRoute(tunnel)
	}
	if a.EncapType != "ether" || len(a.HardwareAddr) != 6 {
		u.MAC = nil
		if why := whyNotBare(l); why != "" && !u.ByRoute {
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
	skipped := Skipped{Dev: l.Attrs().Name, Reason: reason}
	if bridge := s.bridgeOf(l); bridge != nil {
		skipped.Bridge = bridge.Attrs().Index
	}
	s.found.Skipped = append(s.found.Skipped, skipped)
}

// refuse returns what is wrong with a named device, or skips it.
func (s *scan) refuse(name string, err error) error {
	if s.lenient {
		s.found.Skipped = append(s.found.Skipped, Skipped{Dev: name, Reason: err.Error()})
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
