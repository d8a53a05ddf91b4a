package devices

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/internal/startup/cni"
)

// veth is a pair whose host end is a port of a bridge.
type veth struct{}

func (veth) routed() bool { return false }

func (veth) macs(s Spec) Made { return macsOf(s.Leases) }

func (veth) prepare(h *Host, c *cni.Conf) error { return h.ensureBridge(c) }

func (veth) unprepare(h *Host, c *cni.Conf) error { return h.removeBridge(c.Bridge) }

func (veth) make(h *Host, s Spec, m Made) error {
	bridge, err := indexOf(s.Conf.Bridge)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotPrepared, err)
	}
	return h.rt.Do(newLink(pair("veth", s, m, bridge)))
}

// pair describes a device pair in one request: the host's end, up and in a bridge if
// one is given, and the container's end in its namespace. That end cannot be up yet,
// since it has no peer when its flags are set.
func pair(kind string, s Spec, m Made, bridge int) link {
	peer := link{name: s.Name, mac: m.MAC, mtu: s.Conf.MTU, netns: s.Netns}
	return link{
		name: s.Host, kind: kind, up: true, mac: m.HostMAC, mtu: s.Conf.MTU, master: bridge,
		data: func(e *nlmsg.Encoder) { e.Bytes(vethInfoPeer, peer.encode()) },
	}
}

const vethInfoPeer = 1 // VETH_INFO_PEER

// madeBySCON is the alias of bridges that SCON made, and removes with the last
// container.
const madeBySCON = "made by scon for its containers"

// ensureBridge makes the bridge if it is missing, and adds the gateway addresses.
func (h *Host) ensureBridge(c *cni.Conf) error {
	err := h.rt.Do(newLink(link{name: c.Bridge, kind: "bridge", up: true, mtu: c.MTU, mac: netdev.RandomMAC()}))
	fresh := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	index, err := indexOf(c.Bridge)
	if err != nil {
		return err
	}
	todo := []nlmsg.Command{setUp(index)}
	if fresh {
		todo = append(todo, setAlias(index, madeBySCON))
	}
	if fresh || c.IsGateway {
		if err := hostEnd(c.Bridge, c); err != nil {
			return err
		}
	}
	if c.IsGateway {
		todo = append(todo, gateways(index, c)...)
	}
	return h.rt.Do(todo...)
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
	return h.rt.Do(delLink(name))
}
