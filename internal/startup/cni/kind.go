package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
)

// Kinds of a container's primary device (Understanding Network Startup for Secure
// Containers, sections 3.1 and 4).
const (
	Veth      = "veth"       // a pair, its host end a port of a bridge
	PtP       = "ptp"        // a pair, routed
	Netkit    = "netkit"     // a pair of kind netkit, routed
	Macvlan   = "macvlan"    // an upper device of a master
	Macvtap   = "macvtap"    // macvlan with a character device for a microVM
	IPvlan    = "ipvlan"     //
	IPvtap    = "ipvtap"     //
	TCRouting = "tc-routing" // a pair, its host end connected with a shared vPort by BPF programs
	OVS       = "ovs"        // a pair, its host end a port of an Open vSwitch
)

// Kinds lists all kinds.
var Kinds = []string{Veth, PtP, Netkit, Macvlan, Macvtap, IPvlan, IPvtap, TCRouting, OVS}

// Values of Network.Sharing.
const (
	Direct       = "direct"
	SingleTenant = "single-tenant"
	MultiTenant  = "multi-tenant"
)

// sharings are the values of Sharing that a kind supports; the first is the default. A
// pair belongs to one container; upper devices share their master.
var sharings = map[string][]string{
	Veth:      {Direct},
	PtP:       {Direct},
	Netkit:    {Direct},
	Macvlan:   {SingleTenant, MultiTenant},
	Macvtap:   {SingleTenant, MultiTenant},
	IPvlan:    {SingleTenant},
	IPvtap:    {SingleTenant},
	TCRouting: {MultiTenant, SingleTenant},
	OVS:       {Direct},
}

// modes are the modes of a kind; the first is the default.
var modes = map[string][]string{
	Macvlan: {"bridge", "private", "vepa", "passthru"},
	Macvtap: {"bridge", "private", "vepa", "passthru"},
	IPvlan:  {"l2", "l3", "l3s"},
	IPvtap:  {"l2", "l3", "l3s"},
	Netkit:  {"l2", "l3"},
}

// HasMaster reports whether the network's kind needs a device of the host as master.
func (n *Network) HasMaster() bool {
	return modes[n.Kind] != nil && n.Kind != Netkit || n.Kind == TCRouting
}

func (c *Conf) completeKind() error {
	if err := oneOf("kind", &c.Kind, Kinds...); err != nil {
		return err
	}
	if err := oneOf("sharing", &c.Sharing, sharings[c.Kind]...); err != nil {
		return fmt.Errorf("%w for kind %s", err, c.Kind)
	}
	if m := modes[c.Kind]; m != nil {
		if err := oneOf("mode", &c.Mode, m...); err != nil {
			return fmt.Errorf("%w for kind %s", err, c.Kind)
		}
	} else if c.Mode != "" {
		return fmt.Errorf("mode is %q: kind %s has none", c.Mode, c.Kind)
	}
	if err := c.completeTenant(); err != nil {
		return err
	}
	if c.HasMaster() && len(c.Rules) > 0 {
		return fmt.Errorf("rules: traffic of kind %s bypasses the host's rules", c.Kind)
	}
	if c.HasMaster() && (c.IsGateway || c.IPMasq) {
		return fmt.Errorf("isGateway and ipMasq: the host is not a gateway of kind %s, whose traffic leaves by master", c.Kind)
	}
	if c.IPMasq && !c.IsGateway && (c.Kind == Veth || c.Kind == OVS) {
		return fmt.Errorf("ipMasq: kind %s needs isGateway too, since only forwarded traffic is masqueraded", c.Kind)
	}
	return c.completePort()
}

// completeTenant checks tenant and sharing.
func (c *Conf) completeTenant() error {
	if c.Sharing == SingleTenant && c.Tenant == "" {
		c.Tenant = c.Name
	}
	if c.Tenant != "" && (utils.ValidateNetworkName(c.Tenant) != nil || len(c.Tenant) > mostTenant) {
		return fmt.Errorf("tenant is %q: want letters, digits, '_', '.', '-', at most %d", c.Tenant, mostTenant)
	}
	if c.Sharing == MultiTenant && c.Kind != TCRouting && c.Mode != "private" && c.Mode != "vepa" {
		return fmt.Errorf("mode is %q: want private or vepa for sharing multi-tenant of kind %s, to isolate tenants", c.Mode, c.Kind)
	}
	return nil
}

const mostTenant = 63

// completePort checks bridge, master and VLAN.
func (c *Conf) completePort() error {
	if c.HasMaster() {
		if c.Master == "" {
			return fmt.Errorf("master is missing: kind %s needs a device of the host", c.Kind)
		}
		if err := checkDevice("master", c.Master); err != nil {
			return err
		}
	} else if c.Master != "" {
		return fmt.Errorf("master is %q: kind %s has none", c.Master, c.Kind)
	}
	if c.VLAN != 0 && c.Kind != OVS {
		return fmt.Errorf("vlan is %d: only kind ovs has one", c.VLAN)
	}
	if c.VLAN < 0 || c.VLAN > 4094 {
		return fmt.Errorf("vlan is %d: want 1..4094, or 0 for none", c.VLAN)
	}
	if c.VLAN != 0 && c.IsGateway {
		return fmt.Errorf("isGateway: the host's port of the vSwitch is untagged, the container's is in vlan %d: want a gateway in the vSwitch's network", c.VLAN)
	}
	switch c.Kind {
	case Veth:
		if c.Bridge == "" {
			c.Bridge = "scon0"
		}
	case OVS:
		if c.Bridge == "" {
			return fmt.Errorf("bridge is missing: kind ovs needs a bridge of the vSwitch")
		}
	default:
		if c.Bridge != "" {
			return fmt.Errorf("bridge is %q: kind %s has none", c.Bridge, c.Kind)
		}
		return nil
	}
	return checkDevice("bridge", c.Bridge)
}

func (q *QoS) check() error {
	if q == nil {
		return nil
	}
	for _, dir := range []struct {
		name              string
		rate, burst, peak uint64
	}{{"ingress", q.IngressRate, q.IngressBurst, q.IngressPeak}, {"egress", q.EgressRate, q.EgressBurst, q.EgressPeak}} {
		const least, most = 8000, 400_000_000_000
		switch {
		case dir.rate == 0 && (dir.burst != 0 || dir.peak != 0):
			return fmt.Errorf("qos.%sRate is missing: a burst or a peak needs one", dir.name)
		case dir.rate != 0 && (dir.rate < least || dir.rate > most):
			return fmt.Errorf("qos.%sRate is %d: want bits per second, %d..%d", dir.name, dir.rate, least, uint64(most))
		case dir.peak != 0 && (dir.peak <= dir.rate || dir.peak > most):
			return fmt.Errorf("qos.%sPeak is %d: want bits per second above the rate", dir.name, dir.peak)
		case dir.burst > 32<<30:
			return fmt.Errorf("qos.%sBurst is %d: want bits, at most %d", dir.name, dir.burst, 32<<30)
		}
	}
	return nil
}

func (r Rule) check() error {
	switch {
	case r.Direction != "ingress" && r.Direction != "egress":
		return fmt.Errorf("direction is %q: want ingress or egress", r.Direction)
	case r.Protocol != "" && !slices.Contains([]string{"tcp", "udp", "icmp"}, r.Protocol):
		return fmt.Errorf("protocol is %q: want tcp, udp or icmp", r.Protocol)
	case r.Port != 0 && r.Protocol != "tcp" && r.Protocol != "udp":
		return fmt.Errorf("port is %d: only tcp and udp have ports", r.Port)
	case r.PortEnd != 0 && (r.Port == 0 || r.PortEnd < r.Port):
		return fmt.Errorf("portEnd is %d: want at least port, which is %d", r.PortEnd, r.Port)
	}
	if r.CIDR != "" {
		p, err := netip.ParsePrefix(r.CIDR)
		if err != nil || !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("cidr is %q: want an IPv4 subnet such as 10.0.0.0/8", strings.TrimSpace(r.CIDR))
		}
	}
	return nil
}
