package devices

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
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
	// Addresses are further ones of the device: a later plugin's, or a runtime's mistake.
	Addresses []netip.Addr
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

// checkAddresses returns an error if the container's device lacks an address or a route. The
// container may have any number of them, so they are not collected.
func checkAddresses(l netlink.Link, a Attached) error {
	addrs := make(map[netip.Addr]bool)
	for _, want := range a.Leases {
		addrs[want.Address.Addr()] = true
	}
	for _, want := range a.Addresses {
		addrs[want] = true
	}
	err := dump(unix.RTM_GETADDR, unix.SizeofIfAddrmsg, func(header []byte, attrs iter.Seq2[uint16, []byte]) {
		if indexAt(header[4:]) != l.Attrs().Index {
			return
		}
		for typ, value := range attrs {
			if addr, ok := netip.AddrFromSlice(value); ok && (typ == unix.IFA_LOCAL || typ == unix.IFA_ADDRESS && addr.Is6()) {
				delete(addrs, addr)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", a.Name, err)
	}
	for addr := range addrs {
		return fmt.Errorf("device %s of the container lacks its address %v", a.Name, addr)
	}
	routes := make(map[netip.Prefix]bool)
	for _, want := range a.Routes {
		routes[want] = true
	}
	err = dump(unix.RTM_GETROUTE, unix.SizeofRtMsg, func(header []byte, attrs iter.Seq2[uint16, []byte]) {
		family, bits, out := header[0], int(header[1]), 0
		dst := netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			dst = netip.IPv6Unspecified()
		}
		for typ, value := range attrs {
			switch typ {
			case unix.RTA_DST:
				dst, _ = netip.AddrFromSlice(value)
			case unix.RTA_OIF:
				out = indexAt(value)
			}
		}
		if header[4] == unix.RT_TABLE_MAIN && out == l.Attrs().Index {
			delete(routes, netip.PrefixFrom(dst, bits))
		}
	})
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", a.Name, err)
	}
	for want := range routes {
		return fmt.Errorf("the container lacks its route to %v", want)
	}
	return nil
}

// dump calls fn for each object of a kind in the namespace of the calling thread, with its
// header of that size and its attributes.
func dump(typ uint16, size int, fn func(header []byte, attrs iter.Seq2[uint16, []byte])) error {
	s, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Request(nlmsg.Request{Type: typ, Flags: unix.NLM_F_DUMP, Data: make([]byte, size)}, func(m nlmsg.Message) {
		if len(m.Data) >= size {
			fn(m.Data[:size], nlmsg.Attributes(m.Data[size:]))
		}
	})
}

// indexAt returns the ifindex at the beginning of b.
func indexAt(b []byte) int { return int(binary.NativeEndian.Uint32(b)) }

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
	const sizeofTcmsg, kind = 20, 1 // struct tcmsg, TCA_KIND
	shaped := false
	err := dump(unix.RTM_GETQDISC, sizeofTcmsg, func(header []byte, attrs iter.Seq2[uint16, []byte]) {
		for typ, value := range attrs {
			shaped = shaped || typ == kind && unix.ByteSliceToString(value) == "tbf" && indexAt(header[4:]) == l.Attrs().Index
		}
	})
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	if !shaped {
		return fmt.Errorf("device %s lacks its rate limit", l.Attrs().Name)
	}
	return nil
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
