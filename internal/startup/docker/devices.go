package docker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// Prefixes of device names: the host's end, and the container's end before Docker moves
// it; each is followed by the first characters of the endpoint's ID.
const (
	hostPrefix  = "sdh"
	innerPrefix = "sdc"
)

// hostAlias marks the host's ends of the driver's devices.
const hostAlias = "container of a network of scon's docker driver"

// macOf derives a MAC address from the IPv4 address, as Docker's bridge driver does: the
// next container with that address has the same one, so neighbour tables stay valid.
func macOf(e *Endpoint) string {
	if a, ok := e.addr(false); ok {
		return append(net.HardwareAddr{0x02, 0x42}, a.AsSlice()...).String()
	}
	return netdev.RandomMAC().String()
}

// makeBridge makes a network's bridge with those of the host's addresses that are
// missing, and enables forwarding.
func makeBridge(n *Network) error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = n.Bridge, mac, n.MTU
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", n.Bridge, err)
	}
	bridge, err := netlink.LinkByName(n.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.Bridge, err)
	}
	if bridge.Type() != "bridge" {
		return fmt.Errorf("device %s is a %s, not a bridge: choose another com.docker.network.bridge.name", n.Bridge, bridge.Type())
	}
	if err := n.settings(); err != nil {
		return err
	}
	for _, g := range n.Gateways {
		addr := &netlink.Addr{IPNet: ipNet(g)}
		if g.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // Docker's IPAM excludes duplicates
		}
		if err := netlink.AddrReplace(bridge, addr); err != nil {
			return fmt.Errorf("bridge %s: add address %v: %w", n.Bridge, g, err)
		}
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bring bridge %s up: %w", n.Bridge, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// settings sets the sysctls that a network needs at all times.
func (n *Network) settings() error {
	// The host ignores router advertisements of containers.
	all := []sysctl.Setting{{Name: "net/ipv6/conf/" + n.Bridge + "/accept_ra", Value: "0"}}
	for _, p := range n.Pools {
		switch {
		case n.Internal:
		case p.Addr().Is4():
			all = append(all, sysctl.Setting{Name: "net/ipv4/ip_forward", Value: "1"})
		default:
			all = append(all, sysctl.Setting{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
		}
		if p.Addr().Is6() {
			all = append(all, sysctl.Setting{Name: "net/ipv6/conf/" + n.Bridge + "/disable_ipv6", Value: "0"})
		}
	}
	return sysctl.Set(all)
}

// removeBridge removes a bridge; a missing bridge is no error.
func removeBridge(n *Network) error { return removeLink(n.Bridge) }

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}

// makePair makes an endpoint's devices, with the host's end as a port of the bridge, and
// returns the name of the container's end, which Docker moves.
func makePair(n *Network, id string, e *Endpoint) (inner string, err error) {
	inner = innerPrefix + id[:maxDeviceName-len(innerPrefix)]
	mac, err := net.ParseMAC(e.MAC)
	if err != nil {
		return "", fmt.Errorf("address of the container's device: %w", err)
	}
	bridge, err := netlink.LinkByName(n.Bridge)
	if err != nil {
		return "", fmt.Errorf("find bridge %s: %w", n.Bridge, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = e.Host, n.MTU, bridge.Attrs().Index
	peer := netlink.NewLinkAttrs()
	peer.Name, peer.MTU, peer.HardwareAddr = inner, n.MTU, mac

	kit := &netlink.Netkit{
		LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2,
		Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
	}
	kit.SetPeerAttrs(&peer)
	err = netlink.LinkAdd(kit)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: inner, PeerHardwareAddr: mac, PeerMTU: uint32(n.MTU)})
	}
	if err != nil {
		return "", fmt.Errorf("make the container's device: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeLink(e.Host))
		}
	}()
	port, err := netlink.LinkByName(e.Host)
	if err != nil {
		return "", fmt.Errorf("find device %s: %w", e.Host, err)
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set the alias of", func() error { return netlink.LinkSetAlias(port, hostAlias) }},
		// A container may reach its own published port.
		{"set hairpin mode of", func() error { return netlink.LinkSetHairpin(port, true) }},
		{"isolate", func() error { return netlink.LinkSetIsolated(port, n.Apart) }},
		{"bring up", func() error { return netlink.LinkSetUp(port) }},
	} {
		if err = step.do(); err != nil {
			return "", fmt.Errorf("%s device %s: %w", step.what, e.Host, err)
		}
	}
	return inner, nil
}

// removeStrays removes the host's ends that belong to no recorded endpoint.
func (d *Driver) removeStrays() error {
	known := make(map[string]bool)
	for _, n := range d.networks {
		for _, e := range n.Endpoints {
			known[e.Host] = true
		}
	}
	links, err := netdev.List()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Alias != hostAlias || !strings.HasPrefix(a.Name, hostPrefix) || known[a.Name] {
			continue
		}
		if err := removeLink(a.Name); err != nil {
			return err
		}
	}
	return nil
}

// hasLink reports whether a device exists.
func hasLink(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find device %s: %w", name, err)
	}
	return true, nil
}
