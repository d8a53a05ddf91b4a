package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/netns"
)

// carrierTimeout is how long a new link may take to get a carrier.
const carrierTimeout = 5 * time.Second

// wire is a veth pair between two nodes.
type wire struct {
	node, dev         string
	peerNode, peerDev string
	netkit            bool
}

// HasNetkit reports whether this kernel supports netkit pairs (Linux 6.7).
func HasNetkit() bool {
	return netns.Scratch(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "nk"
		return netlink.LinkAdd(&netlink.Netkit{LinkAttrs: attrs})
	}) == nil
}

// uplink is the veth pair between device and edge.
var uplink = wire{node: Device, dev: Uplink, peerNode: Edge, peerDev: Uplink}

// port is the veth pair between device and container n.
func port(n int) wire {
	return wire{node: Device, dev: Port(n), peerNode: Container(n), peerDev: "eth0"}
}

// dockerMAC returns the MAC address that Docker derives from an IPv4 address:
// 172.17.0.2 has 02:42:ac:11:00:02.
func dockerMAC(addr netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x02, 0x42}, addr.AsSlice()...)
}

// ifAddr is an address with the length of its network's prefix, for a device.
func ifAddr(addr netip.Addr, network netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{
		IP:   addr.AsSlice(),
		Mask: net.CIDRMask(network.Bits(), addr.BitLen()),
	}}
}

// configure sets a device's address and sets it up.
func configure(h *netlink.Handle, dev string, addr *netlink.Addr) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	if err := h.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("address %s on %s: %w", addr, dev, err)
	}
	return setUp(h, dev)
}

// setUp sets a device up.
func setUp(h *netlink.Handle, dev string) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", dev, err)
	}
	return nil
}

// enslave makes a device a port of a bridge.
func enslave(h *netlink.Handle, dev, bridge string) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	master, err := h.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", bridge, err)
	}
	if err := h.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("put %s on %s: %w", dev, bridge, err)
	}
	return nil
}

// defaultRoute adds a default route.
func defaultRoute(h *netlink.Handle, gateway netip.Addr) error {
	route := &netlink.Route{
		Dst: &net.IPNet{IP: make(net.IP, gateway.BitLen()/8), Mask: net.CIDRMask(0, gateway.BitLen())},
		Gw:  gateway.AsSlice(),
	}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("default route via %s: %w", gateway, err)
	}
	return nil
}

// hasLink reports whether a device exists.
func hasLink(h *netlink.Handle, dev string) (bool, error) {
	_, err := h.LinkByName(dev)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find %s: %w", dev, err)
	}
	return true, nil
}

// deleteLink removes a device, and with it the peer of a veth. A missing device is
// no error.
func deleteLink(h *netlink.Handle, dev string) error {
	link, err := h.LinkByName(dev)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("delete %s: %w", dev, err)
	}
	return nil
}

// removeLinks removes the veths, bridges, bonds and tunnels of the current namespace.
func removeLinks() error {
	links, err := netdev.List()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, link := range links {
		if link.Attrs().Name == Second || isOfLab(link) {
			// Removing one end of a veth pair removes the other.
			if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("delete %s: %w", link.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// isOfLab reports whether a link is of a kind of which a namespace has none by itself.
func isOfLab(link netlink.Link) bool {
	switch link.(type) {
	case *netlink.Veth, *netlink.Netkit, *netlink.Bridge, *netlink.Bond, *netlink.Vxlan, *netlink.Wireguard:
		return true
	}
	return false
}

// waitForCarrier returns when a device has a carrier.
func waitForCarrier(h *netlink.Handle, dev string) error {
	for deadline := time.Now().Add(carrierTimeout); ; time.Sleep(2 * time.Millisecond) {
		link, err := h.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find %s: %w", dev, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has no carrier after %v", dev, carrierTimeout)
		}
	}
}

// stopOffloads disables the offloads of a device of the current namespace.
func stopOffloads(dev string) error {
	cmd := exec.Command("ethtool", "-K", dev,
		"rx", "off", "tx", "off", "sg", "off", "tso", "off", "gso", "off", "gro", "off")
	return runTool(cmd, "ethtool")
}
