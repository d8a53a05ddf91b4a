package devices

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
)

// Attached is the expected state of a container's device.
type Attached struct {
	Network *cni.Network
	QoS     *cni.QoS // the container's, nil for none
	Host    string   // "" for kinds without a device on the host
	Name    string   // in the container
	MAC     string   // "" if the kernel chose it
	Leases  []ipam.Lease
	Routes  []netip.Prefix
}

// CheckShared returns an error if the bridge or master of a network is missing or
// down.
func (h *Host) CheckShared(n *cni.Network) error {
	for key, name := range map[string]string{"bridge": n.Bridge, "master": n.Master} {
		if name == "" || n.Kind == cni.OVS && !n.IsGateway {
			continue
		}
		if _, err := upLink(name); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if n.Kind != cni.OVS {
		return nil
	}
	return findSwitch(n.Bridge)
}

// Check checks the host's end of a container's device, in the namespace of the
// calling thread.
func (h *Host) Check(a Attached) error {
	if err := h.CheckShared(a.Network); err != nil {
		return err
	}
	if a.Host == "" {
		return nil
	}
	l, err := upLink(a.Host)
	if err != nil {
		return fmt.Errorf("the container's end on the host: %w", err)
	}
	if c, ok := makers[a.Network.Kind].(checker); ok {
		if err := c.check(h, a); err != nil {
			return err
		}
	}
	if a.QoS != nil && a.QoS.IngressRate > 0 {
		if err := isShaped(l); err != nil {
			return err
		}
	}
	return checkRules(a)
}

// CheckInside checks the container's end, in the container.
func CheckInside(a Attached) error {
	l, err := upLink(a.Name)
	if err != nil {
		return fmt.Errorf("the container's own end: %w", err)
	}
	if got := l.Attrs().HardwareAddr.String(); a.MAC != "" && got != a.MAC {
		return fmt.Errorf("device %s of the container has MAC address %s: want %s", a.Name, got, a.MAC)
	}
	if err := checkAddresses(l, a); err != nil {
		return err
	}
	if a.QoS != nil && a.QoS.EgressRate > 0 {
		if err := isShaped(l); err != nil {
			return err
		}
	}
	if a.Network.Tap {
		return checkTap(l)
	}
	return nil
}

// upLink returns a device, or an error if it is missing or down.
func upLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", name, err)
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("device %s is down", name)
	}
	return l, nil
}

func checkAddresses(l netlink.Link, a Attached) error {
	there, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", a.Name, err)
	}
	for _, want := range a.Leases {
		if !slices.ContainsFunc(there, func(got netlink.Addr) bool {
			addr, ok := netip.AddrFromSlice(got.IP)
			return ok && addr.Unmap() == want.Address.Addr()
		}) {
			return fmt.Errorf("device %s of the container lacks its address %v", a.Name, want.Address)
		}
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", a.Name, err)
	}
	for _, want := range a.Routes {
		if !slices.ContainsFunc(routes, func(got netlink.Route) bool { return leadsTo(got, want) }) {
			return fmt.Errorf("the container lacks its route to %v", want)
		}
	}
	return nil
}

// leadsTo reports whether a route has a destination. The kernel reports none for the
// default route.
func leadsTo(r netlink.Route, want netip.Prefix) bool {
	if r.Dst == nil {
		return want.Bits() == 0
	}
	got, err := netip.ParsePrefix(r.Dst.String())
	return err == nil && got == want
}

// isShaped returns an error if a device lacks its token bucket filter.
func isShaped(l netlink.Link) error {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex == l.Attrs().Index && q.Type() == "tbf" {
			return nil
		}
	}
	return fmt.Errorf("device %s lacks its rate limit", l.Attrs().Name)
}

// checkTap returns an error if the microVM's tap is missing or not connected to the
// container's device.
func checkTap(l netlink.Link) error {
	tap, err := upLink(TapName)
	if err != nil {
		return fmt.Errorf("the microVM's tap: %w", err)
	}
	for _, at := range []netlink.Link{l, tap} {
		filters, err := filtersOf(at.Attrs().Index, netlink.MakeHandle(0xffff, 0))
		if err != nil {
			return err
		}
		if len(filters) == 0 {
			return fmt.Errorf("device %s lacks its redirection to the microVM", at.Attrs().Name)
		}
	}
	return nil
}

// checkRules returns an error if the security group is not in force.
func checkRules(a Attached) error {
	if len(a.Network.Rules) == 0 {
		return nil
	}
	g, err := openGroups()
	if err != nil {
		return fmt.Errorf("read the security group: %w", err)
	}
	for _, dir := range []struct {
		direction string
		verdicts  *nftables.Set
	}{{"ingress", g.ingress}, {"egress", g.egress}} {
		if !slices.ContainsFunc(a.Network.Rules, func(r cni.Rule) bool { return r.Direction == dir.direction }) {
			continue
		}
		elements, err := g.GetSetElements(dir.verdicts)
		if err != nil {
			return fmt.Errorf("read the security group: %w", err)
		}
		for _, l := range a.Leases {
			if !hasElement(elements, l.Address.Addr(), chainOf(dir.direction, a.Host)) {
				return fmt.Errorf("the container lacks its rules for %s", dir.direction)
			}
		}
	}
	return nil
}

// check returns an error if the container's port is not a port of the bridge.
func (veth) check(_ *Host, a Attached) error {
	bridge, err := netlink.LinkByName(a.Network.Bridge)
	if err != nil {
		return fmt.Errorf("bridge: find device %s: %w", a.Network.Bridge, err)
	}
	l, err := netlink.LinkByName(a.Host)
	if err != nil {
		return fmt.Errorf("find device %s: %w", a.Host, err)
	}
	if l.Attrs().MasterIndex != bridge.Attrs().Index {
		return fmt.Errorf("device %s is not a port of bridge %s", a.Host, a.Network.Bridge)
	}
	return nil
}

func (ptp) check(_ *Host, a Attached) error    { return checkRouted(a) }
func (netkit) check(_ *Host, a Attached) error { return checkRouted(a) }

// checkRouted returns an error if the host has no route to a container.
func checkRouted(a Attached) error {
	l, err := netlink.LinkByName(a.Host)
	if err != nil {
		return fmt.Errorf("find device %s: %w", a.Host, err)
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", a.Host, err)
	}
	for _, lease := range a.Leases {
		addr := lease.Address.Addr()
		want := netip.PrefixFrom(addr, addr.BitLen())
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return leadsTo(r, want) }) {
			return fmt.Errorf("the host lacks its route to %v", want)
		}
	}
	return nil
}
