// Package discover reads from the kernel which devices containers are attached
// to and which devices their traffic leaves by: bridges, bridge ports of
// containers, and uplinks. It works on the network namespace of the calling
// thread.
package discover

import (
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/tcfilter"
)

// Auto as the only name of a list means all suitable devices.
const Auto = "auto"

// Options say which devices to consider.
type Options struct {
	// Bridges are the bridges whose ports count, by name. None, or Auto: every
	// bridge with at least one container's port, and containers that are
	// routed.
	Bridges []string
	// Uplinks are the devices by which traffic leaves or enters, by name.
	// None, or Auto: every device that a route of any table uses and that has
	// no containers behind it, and cards, VLANs and bonds that are ports of
	// containers' bridges.
	Uplinks []string
	// Lenient skips a named device that is missing or of another kind.
	Lenient bool
}

// Topology is what was found, each list sorted by ifindex.
type Topology struct {
	Links   []netlink.Link // all devices
	Bridges []Bridge
	Ports   []Port
	Uplinks []Uplink
	Skipped []Skipped // devices that a user may expect above, and why they are not
	// Qdiscs are the kinds of root qdiscs, by ifindex.
	Qdiscs map[int]string
	// Asks is what a queue of a device asks.
	Asks Question
	// IdleTimer is the shortest time without packets after which the kernel moves packets
	// of a resilient group of next hops, 0 if no route leads to such a group.
	IdleTimer time.Duration
}

// Bridge is a bridge with containers.
type Bridge struct {
	Index int
	Name  string
	// MST means that its ports have a state for each spanning tree (mst_enabled), of
	// which the kernel announces no change.
	MST bool
}

// Netkit is the kind of the kernel's device pairs for containers (Linux 6.7).
const Netkit = "netkit"

// Port is the end of a container's device pair that is a bridge port, or that
// a route to the container leads to.
type Port struct {
	Index     int
	Name      string
	Bridge    Bridge  // zero if the container is routed
	MAC       [6]byte // of Inside: what the container's packets to IP are addressed to; 0 if it has none of that length
	MTU       int     // bytes
	PeerNSID  int     // ID of the container's namespace in this one
	PeerIndex int     // of the other end, in the container's namespace
	Up        bool    // both ends are up
	Qdisc     string  // the kind of the root qdisc, "noqueue" unless traffic is shaped
	Kind      string  // of the pair: "veth" or Netkit
	Packets   uint64  // that have passed it so far

	// Wide means that IP sends packets of Wide bytes by Inside as they are.
	Wide bool

	// Calls4 and Calls6 mean that its bridge shows what it forwards to Netfilter by its
	// own setting (nf_call_iptables, nf_call_ip6tables), whatever the sysctls say.
	Calls4, Calls6 bool
}

// Routed reports whether a route leads to the container, not a bridge.
func (p Port) Routed() bool { return p.Bridge.Index == 0 }

// Inside is the device by which IP sees the container's packets enter and leave.
func (p Port) Inside() (index int, name string) {
	if p.Routed() {
		return p.Index, p.Name
	}
	return p.Bridge.Index, p.Bridge.Name
}

// Uplink is a device by which containers' traffic leaves or enters.
type Uplink struct {
	Index int
	Name  string
	MTU   int // bytes
	MAC   net.HardwareAddr
	// TunnelPort is the UDP destination port of a VXLAN device that sends by
	// devices of this namespace; 0 for all other devices.
	TunnelPort uint16
	// IPIP means that it is a tunnel of IPIP that sends by devices of this namespace: by
	// the one with the ifindex Below, or by any if that is 0.
	IPIP  bool
	Below int
	// ByRoute means that it has no remote end, and sends a packet where its route says.
	ByRoute bool
	// Bridge is the containers' bridge that it is a port of: what this forwards by it is
	// bridged. It is zero for all other devices.
	Bridge Bridge
	// Spread means that a route has several next hops, of which the device has one.
	Spread bool
	// Wide means that IP sends packets of Wide bytes by it as they are.
	Wide bool
}

// Tunnels reports whether packets may skip the uplink.
func (u Uplink) Tunnels() bool { return u.TunnelPort != 0 || u.IPIP }

// Bare reports whether packets have no MAC header at the uplink.
func (u Uplink) Bare() bool { return u.MAC == nil }

// Skipped is a device that is not used, and why.
type Skipped struct {
	Dev, Reason string
	Bridge      int // ifindex of the bridge that it is a port of, 0 for none
}

// Scan reads the topology once.
func Scan(opts Options) (Topology, error) {
	s, err := NewScanner()
	if err != nil {
		return Topology{}, err
	}
	defer s.Close()
	return s.Scan(opts)
}

// ForeignIngress names a tc filter of another program at the ingress of a
// device, which express packets would skip; "" if there is none.
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

// isAuto reports whether a list of names means all suitable devices.
func isAuto(names []string) bool {
	return len(names) == 0 || len(names) == 1 && names[0] == Auto
}
