package docker

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/startup/devices"
)

// Prefixes of device names: the host's end, and the container's end before Docker moves
// it; each is followed by the first characters of the endpoint's ID.
const (
	hostPrefix   = "sdh"
	siftedPrefix = "sdi" // of those whose network reaches their published ports alone
	innerPrefix  = "sdc"
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
// missing, and enables forwarding. For a new network no device may have the name: another
// program may make one at any time.
func (d *Driver) makeBridge(n *Network, isNew bool) error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	b := devices.Bridge{Name: n.Bridge, MAC: mac, MTU: n.MTU, Addresses: n.Gateways, New: isNew}
	b.IPv6 = slices.ContainsFunc(n.Pools, n.ofFamily(true))
	err = d.host.MakeBridge(b)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("device %s exists already: choose another com.docker.network.bridge.name", n.Bridge)
	}
	if err != nil || n.Internal {
		return err
	}
	return devices.Forward(n.Pools)
}

// hasForeign reports whether a device of the name of a network's bridge is another program's: it
// has another MAC address.
func (d *Driver) hasForeign(n *Network) (bool, error) {
	l, err := netlink.LinkByName(n.Bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find bridge %s: %w", n.Bridge, err)
	}
	foreign := l.Attrs().HardwareAddr.String() != n.MAC
	if foreign {
		d.log.Error("docker driver: the device of a network's bridge is another program's: it is left alone", "bridge", n.Bridge)
	}
	return foreign, nil
}

// removeBridge removes a network's bridge.
func (d *Driver) removeBridge(n *Network) error {
	if foreign, err := d.hasForeign(n); err != nil || foreign {
		return err
	}
	return d.host.RemoveLink(n.Bridge)
}

// makePair makes an endpoint's devices, with the host's end as a port of the bridge, and
// returns the name of the container's end, which Docker moves.
func (d *Driver) makePair(n *Network, id string, e *Endpoint) (inner string, err error) {
	mac, err := net.ParseMAC(e.MAC)
	if err != nil {
		return "", fmt.Errorf("address of the container's device: %w", err)
	}
	inner = innerPrefix + id[:maxDeviceName-len(innerPrefix)]
	return inner, d.host.MakePort(devices.Port{
		Bridge: n.Bridge, Host: e.Host, Inner: inner, MAC: mac, MTU: n.MTU, Alias: hostAlias, Isolated: n.Apart && n.Internal,
	})
}

// dropDead removes the endpoints whose device has ended with its container. Docker sends a request
// that the driver's death cut off again without its content, so that nobody knows which endpoint
// is deleted.
func (d *Driver) dropDead() (dropped bool, err error) {
	links, err := netdev.List()
	if err != nil {
		return false, fmt.Errorf("list devices: %w", err)
	}
	for _, n := range d.networks {
		for id, e := range n.Endpoints {
			if e.Host == "" || slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == e.Host }) {
				continue
			}
			if err := d.drop(n, id); err != nil {
				return dropped, err
			}
			dropped = true
		}
	}
	return dropped, nil
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
		if a.Alias != hostAlias || known[a.Name] || !strings.HasPrefix(a.Name, hostPrefix) && !strings.HasPrefix(a.Name, siftedPrefix) {
			continue
		}
		if err := d.host.RemoveLink(a.Name); err != nil {
			return err
		}
	}
	return nil
}
