package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// address is configure for each address family of the lab.
func (b *builder) address(node, dev string, v4, v6 *netlink.Addr) error {
	if err := configure(b.nodes[node], dev, v4); err != nil || !b.opts.IPv6 {
		return err
	}
	return configure(b.nodes[node], dev, v6)
}

// route is defaultRoute for each address family of the lab.
func (b *builder) route(node string, v4, v6 netip.Addr) error {
	if err := defaultRoute(b.nodes[node], v4); err != nil || !b.opts.IPv6 {
		return err
	}
	return defaultRoute(b.nodes[node], v6)
}

// makeWire makes a veth pair unless it exists.
func (b *builder) makeWire(w wire, peerMAC net.HardwareAddr) error {
	h := b.nodes[w.node]
	here, err := hasLink(h, w.dev)
	if err != nil {
		return err
	}
	there, err := hasLink(b.nodes[w.peerNode], w.peerDev)
	if err != nil {
		return err
	}
	if here && there {
		return nil
	}
	// A single end has its peer in a namespace whose name is gone while a process
	// keeps it.
	if err := deleteLink(h, w.dev); err != nil {
		return err
	}
	peer, err := netns.Open(b.Node(w.peerNode))
	if err != nil {
		return err
	}
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = w.dev
	if err := h.LinkAdd(w.pair(attrs, netlink.NsFd(peer.Fd()), peerMAC)); err != nil {
		return fmt.Errorf("add %s with %s in %s: %w", w.dev, w.peerDev, w.peerNode, err)
	}
	b.undo(func() error { return deleteLink(h, w.dev) })
	return nil
}

// pair is the two devices of a wire.
func (w wire) pair(attrs netlink.LinkAttrs, peer netlink.NsFd, peerMAC net.HardwareAddr) netlink.Link {
	if w.netkit {
		kit := &netlink.Netkit{
			LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2,
			Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		}
		inner := netlink.NewLinkAttrs()
		inner.Name, inner.Namespace, inner.HardwareAddr = w.peerDev, peer, peerMAC
		kit.SetPeerAttrs(&inner)
		return kit
	}
	veth := netlink.NewVeth(attrs)
	veth.PeerName = w.peerDev
	veth.PeerNamespace = peer
	veth.PeerHardwareAddr = peerMAC
	return veth
}

// makeUplink makes the veth pair between device and edge.
func (b *builder) makeUplink() error {
	if err := b.makeWire(uplink, nil); err != nil {
		return err
	}
	if err := b.address(Edge, Uplink, ifAddr(EdgeAddr, uplinkNet), ifAddr(EdgeAddr6, uplinkNet6)); err != nil {
		return err
	}
	if err := b.address(Device, Uplink, ifAddr(DeviceAddr, uplinkNet), ifAddr(DeviceAddr6, uplinkNet6)); err != nil {
		return err
	}
	return b.route(Device, EdgeAddr, EdgeAddr6)
}

// makeBridge makes the containers' bridge.
func (b *builder) makeBridge() error {
	h := b.nodes[Device]
	there, err := hasLink(h, Bridge)
	if err != nil {
		return err
	}
	if !there {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Bridge
		attrs.HardwareAddr = dockerMAC(BridgeAddr)
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", Bridge, err)
		}
		b.undo(func() error { return deleteLink(h, Bridge) })
	}
	return b.address(Device, Bridge, ifAddr(BridgeAddr, bridgeNet), ifAddr(BridgeAddr6, bridgeNet6))
}

// plug attaches container n to the bridge.
func (b *builder) plug(n int) error {
	w := port(n)
	w.netkit = n > b.opts.Containers-b.opts.Netkit
	if err := b.makeWire(w, dockerMAC(ContainerAddr(n))); err != nil {
		return err
	}
	h := b.nodes[w.node]
	if err := enslave(h, w.dev, Bridge); err != nil {
		return err
	}
	if err := setUp(h, w.dev); err != nil {
		return err
	}
	if err := b.address(w.peerNode, w.peerDev, ifAddr(ContainerAddr(n), bridgeNet), ifAddr(ContainerAddr6(n), bridgeNet6)); err != nil {
		return err
	}
	return b.route(w.peerNode, BridgeAddr, BridgeAddr6)
}

// wires are all veth pairs of the lab.
func (b *builder) wires() []wire {
	wires := append([]wire{uplink}, b.opts.kind().wires()...)
	for n := 1; n <= b.opts.Containers; n++ {
		wires = append(wires, port(n))
		if b.opts.Overlay == OverlayDocker {
			wires = append(wires, overlayPort(n))
		}
	}
	return wires
}

// stopOffloads disables the offloads on both ends of every veth pair.
func (b *builder) stopOffloads() error {
	for _, w := range b.wires() {
		err := errors.Join(
			netns.Do(b.Node(w.node), func() error { return stopOffloads(w.dev) }),
			netns.Do(b.Node(w.peerNode), func() error { return stopOffloads(w.peerDev) }))
		if err != nil {
			return err
		}
	}
	return nil
}

// waitForCarrier returns when every veth pair has a carrier.
func (b *builder) waitForCarrier() error {
	for _, w := range append(b.wires(), b.secondEnds()...) {
		if err := waitForCarrier(b.nodes[w.node], w.dev); err != nil {
			return err
		}
		if err := waitForCarrier(b.nodes[w.peerNode], w.peerDev); err != nil {
			return err
		}
	}
	return nil
}

// removeSurplus removes surplus containers of an existing larger lab.
func (b *builder) removeSurplus() error {
	nodes, err := b.Nodes()
	if err != nil {
		return err
	}
	var errs []error
	for _, node := range nodes {
		if number(node) > b.opts.Containers {
			errs = append(errs, b.remove(node))
		}
	}
	return errors.Join(errs...)
}
