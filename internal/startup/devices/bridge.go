package devices

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Bridge describes a bridge of the host.
type Bridge struct {
	Name      string
	MAC       net.HardwareAddr
	MTU       int            // 0 is the kernel's default
	Alias     string         // of a bridge that was missing, "" for none
	Addresses []netip.Prefix // of the host
	New       bool           // a device that is there is refused with EEXIST
	HostEnd
}

// MakeBridge makes the bridge if it is missing, brings it up and adds missing addresses. A
// bridge that was there keeps its settings unless the host has an address at it; another
// device of that name is refused.
func (h *Host) MakeBridge(b Bridge) error {
	err := h.rt.Do(newLink(link{name: b.Name, kind: "bridge", mtu: b.MTU, mac: b.MAC}))
	fresh := err == nil
	if err != nil && (b.New || !errors.Is(err, unix.EEXIST)) {
		return err
	}
	found, err := netlink.LinkByName(b.Name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", b.Name, err)
	}
	if kind := found.Type(); kind != "bridge" {
		return fmt.Errorf("device %s is a %s, not a bridge: choose another name for the bridge", b.Name, kind)
	}
	index := found.Attrs().Index
	if fresh || len(b.Addresses) > 0 {
		if err := b.HostEnd.set(b.Name); err != nil {
			return err
		}
	}
	todo := []nlmsg.Command{setUp(b.Name, index)}
	if fresh && b.Alias != "" {
		todo = append(todo, setAlias(b.Name, index, b.Alias))
	}
	return h.rt.Do(append(todo, newGateways(index, b.Addresses)...)...)
}

// removeBridge removes a bridge that SCON made, if it has no ports.
func (h *Host) removeBridge(name string) error {
	bridge, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	if bridge.Attrs().Alias != madeBySCON {
		return nil
	}
	links, err := netdev.List()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			return nil
		}
	}
	return h.RemoveLink(name)
}

// RemoveLink removes a device; a missing device is no error.
func (h *Host) RemoveLink(name string) error { return h.rt.Do(delLink(0, name)) }

// Port describes a pair in the calling thread's namespace: a port of a bridge, and the end
// that a runtime moves into its container.
type Port struct {
	Bridge, Host, Inner string
	MAC                 net.HardwareAddr // of the container's end
	MTU                 int              // 0 is the kernel's default
	Alias               string           // of the port
	Isolated            bool             // from other isolated ports
}

// MakePort makes a netkit pair, a veth pair where the kernel has no netkit, or nothing. A
// container may send to itself by its port.
func (h *Host) MakePort(p Port) (err error) {
	bridge, err := indexOf(p.Bridge)
	if err != nil {
		return err
	}
	host := link{name: p.Host, mtu: p.MTU, master: bridge}
	inner := link{name: p.Inner, mtu: p.MTU, mac: p.MAC}
	err = h.rt.Do(netkitPair(host, inner, netkitL2))
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = h.rt.Do(vethPair(host, inner))
	}
	if err != nil {
		return err
	}
	index, err := indexOf(p.Host)
	if err == nil {
		err = h.rt.Do(setAlias(p.Host, index, p.Alias), setPort(p.Host, index, p.Isolated), setUp(p.Host, index))
	}
	if err != nil {
		err = errors.Join(err, h.RemoveLink(p.Host))
	}
	return err
}

// setPort makes a port of a bridge send packets back to where they came from (hairpin mode),
// and isolates it from other isolated ports.
func setPort(name string, index int, isolated bool) nlmsg.Command {
	var isolate uint8
	if isolated {
		isolate = 1
	}
	e := nlmsg.NewEncoder()
	e.Nested(unix.IFLA_PROTINFO, func(e *nlmsg.Encoder) error {
		e.Uint8(nl.IFLA_BRPORT_MODE, 1)
		e.Uint8(nl.IFLA_BRPORT_ISOLATED, isolate)
		return nil
	})
	header := ifinfo(index, 0, 0)
	header[0] = unix.AF_BRIDGE
	return nlmsg.Command{What: "configure port " + name, Type: unix.RTM_SETLINK, Data: append(header, encoded(e)...)}
}
