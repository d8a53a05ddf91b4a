// Package discover reads from the kernel where containers hang and where their
// traffic leaves: bridges, the bridge ports of containers, and uplinks. It
// works on the network namespace of the calling thread.
package discover

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// Auto as the only name of a list finds the devices from the kernel.
const Auto = "auto"

// Options says which devices to look at.
type Options struct {
	// Bridges are the bridges whose ports count, by name; none or Auto: every
	// bridge with at least one container's port, and containers that are routed.
	Bridges []string
	// Uplinks are the devices by which traffic leaves or enters, by name; none
	// or Auto: every device that a route of any table goes out of and
	// that has no containers behind it.
	Uplinks []string
	// Lenient skips a device that is named and missing, or of another kind.
	Lenient bool
}

// Topology is what was found, each list in the order of device numbers.
type Topology struct {
	Links   []netlink.Link // all devices, by their numbers
	Bridges []Bridge
	Ports   []Port
	Uplinks []Uplink
	Skipped []Skipped // devices one might expect above, and why they are not
	// Qdiscs are the kinds of qdiscs at the root, by the device's number.
	Qdiscs map[int]string
}

// Bridge is a bridge with containers.
type Bridge struct {
	Index int
	Name  string
}

// Netkit is the kind of the kernel's pairs for containers (Linux 6.7).
const Netkit = "netkit"

// Port is the end of a container's pair of devices that is a port of a bridge, or
// to which a route to the container leads.
type Port struct {
	Index     int
	Name      string
	Bridge    Bridge // zero if the container is routed
	MTU       int    // bytes
	PeerNSID  int    // of the container's namespace, as this namespace numbers it
	PeerIndex int    // of the other end, in the container's namespace
	Up        bool   // both ends are up
	Qdisc     string // the kind at the root, "noqueue" unless somebody shapes the traffic
	Kind      string // of the pair: "veth" or Netkit
}

// Routed reports whether the container is on no bridge: a route leads to it.
func (p Port) Routed() bool { return p.Bridge.Index == 0 }

// Inside is the device by which IP sees the container's packets enter and leave.
func (p Port) Inside() (index int, name string) {
	if p.Routed() {
		return p.Index, p.Name
	}
	return p.Bridge.Index, p.Bridge.Name
}

// Uplink is a device by which traffic of containers leaves or enters.
type Uplink struct {
	Index int
	Name  string
	MTU   int // bytes
	MAC   net.HardwareAddr
	// TunnelPort is where a VXLAN device's packets go, by UDP over devices of this
	// namespace; 0 for all other devices.
	TunnelPort uint16
}

// Bare reports whether packets have no MAC header at the uplink.
func (u Uplink) Bare() bool { return u.MAC == nil }

// Skipped is a device that cannot be used.
type Skipped struct {
	Dev, Reason string
}

// Scan reads the topology. It is an error if a device that the options name is
// missing, unless they are lenient.
func Scan(opts Options) (Topology, error) {
	links, err := whole(netlink.LinkList)
	if err != nil {
		return Topology{}, fmt.Errorf("list devices: %w", err)
	}
	qdiscs, err := whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	if err != nil {
		return Topology{}, fmt.Errorf("list qdiscs: %w", err)
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })

	s := newScan(links, opts.Lenient)
	s.found.Links = links
	if isAuto(opts.Bridges) || isAuto(opts.Uplinks) {
		if s.exits, err = readExits(); err != nil {
			return Topology{}, fmt.Errorf("list routes: %w", err)
		}
	}
	if err := s.findPorts(opts.Bridges, qdiscs); err != nil {
		return Topology{}, err
	}
	if isAuto(opts.Uplinks) {
		s.findUplinks()
		return s.found, nil
	}
	if err := s.nameUplinks(opts.Uplinks); err != nil {
		return Topology{}, err
	}
	return s.found, nil
}

// ForeignIngress names a tc filter at the ingress of a device that is not
// SCON's: packets that go express would never meet it. It is "" if there is
// none.
func ForeignIngress(ifindex int) (string, error) {
	filters, err := tcfilter.Ingress(ifindex)
	if err != nil {
		return "", err
	}
	for _, f := range filters {
		if !f.Own() {
			return f.String(), nil
		}
	}
	return "", nil
}

// isAuto reports whether a list of names leaves it to the kernel's state.
func isAuto(names []string) bool {
	return len(names) == 0 || len(names) == 1 && names[0] == Auto
}

// whole repeats a dump that a change cut in two. Where devices come and go all
// the time that may happen more than once.
func whole[T any](dump func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
