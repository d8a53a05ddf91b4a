package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Values of Options.Overlay: two methods of connecting containers of several machines by
// VXLAN. edge is the second machine.
//
//	flannel   c1 ── docker0 ── routes ── flannel.1 ══ VNI 1, port 8472 ══ flannel.1 ── edge, 10.244.1.1
//	docker    c1 ── br0 ── vxlan0 ══ VNI 4097, port 4789 ══ vxlan0 ── br0 ── edge, 10.0.0.254
//
// In both, neighbour and forwarding entries are permanent, as agents set them. With
// br_netfilter, device's rules apply to br0 as well; Docker's rules drop its packets.
const (
	OverlayFlannel = "flannel"
	OverlayDocker  = "docker"
)

// Devices of the overlays, in device and in edge.
const (
	Flannel       = "flannel.1"
	OverlayVXLAN  = "vxlan0" // the port of OverlayBridge to the other machine
	OverlayBridge = "br0"
)

// OverlayMTU is that of both overlays, and of the containers on them: 50 bytes
// less than the uplink's.
const OverlayMTU = 1450

// Addresses on the overlays.
var (
	FlannelEdge       = netip.MustParseAddr("10.244.1.1")
	FlannelDeviceAddr = netip.MustParseAddr("10.244.0.0") // of device's Flannel; traffic of containers is masqueraded to it
	flannelEdgeAddr   = netip.MustParseAddr("10.244.1.0") // of edge's Flannel
	flannelDeviceNet  = netip.MustParsePrefix("10.244.0.0/24")
	flannelEdgeNet    = netip.MustParsePrefix("10.244.1.0/24")

	OverlayEdge = netip.MustParseAddr("10.0.0.254")
	overlayNet  = netip.MustParsePrefix("10.0.0.0/24")
)

// OverlayAddr returns the address of container n on the docker overlay.
func OverlayAddr(n int) netip.Addr {
	a := overlayNet.Addr().As4()
	a[3] += byte(1 + n)
	return netip.AddrFrom4(a)
}

// overlayPort is the veth pair between device and the second device of container n.
func overlayPort(n int) wire {
	return wire{node: Device, dev: fmt.Sprintf("vetho%d", n), peerNode: Container(n), peerDev: "eth1"}
}

// makeOverlay connects device and edge by the overlay of the options.
func (b *builder) makeOverlay() error {
	switch b.opts.Overlay {
	case OverlayFlannel:
		return b.makeFlannel()
	default:
		return b.makeDockerOverlay()
	}
}

// vtep is one end of a VXLAN device's tunnel.
type vtep struct {
	node  string
	outer netip.Addr
}

var vteps = [2]vtep{{Device, DeviceAddr}, {Edge, EdgeAddr}}

// makeVXLAN makes a VXLAN device unless it exists, and returns it.
func (b *builder) makeVXLAN(at vtep, link netlink.Vxlan) (netlink.Link, error) {
	h, name := b.nodes[at.node], link.Name
	there, err := hasLink(h, name)
	if err != nil {
		return nil, err
	}
	if !there {
		under, err := h.LinkByName(Uplink)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", Uplink, err)
		}
		link.MTU, link.SrcAddr, link.VtepDevIndex = OverlayMTU, at.outer.AsSlice(), under.Attrs().Index
		if err := h.LinkAdd(&link); err != nil {
			return nil, fmt.Errorf("add VXLAN device %s in %s: %w", name, at.node, err)
		}
		b.undo(func() error { return deleteLink(h, name) })
	}
	made, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	return made, nil
}

// leadTo adds the forwarding and neighbour entries of a remote MAC address.
func leadTo(h *netlink.Handle, dev netlink.Link, mac net.HardwareAddr, machine, addr netip.Addr) error {
	for _, n := range []netlink.Neigh{
		{Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, IP: machine.AsSlice()},
		{Family: unix.AF_INET, IP: addr.AsSlice()},
	} {
		n.LinkIndex, n.State, n.HardwareAddr = dev.Attrs().Index, unix.NUD_PERMANENT, mac
		if err := h.NeighSet(&n); err != nil {
			return fmt.Errorf("lead %v at %s to %v: %w", mac, dev.Attrs().Name, machine, err)
		}
	}
	return nil
}

// makeFlannel makes the VXLAN devices and the routes to them.
func (b *builder) makeFlannel() error {
	inner := [2]netip.Addr{FlannelDeviceAddr, flannelEdgeAddr}
	behind := [2][]netip.Prefix{{flannelDeviceNet, bridgeNet}, {flannelEdgeNet}}
	for i, at := range vteps {
		h, other := b.nodes[at.node], 1-i
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = Flannel, dockerMAC(inner[i])
		dev, err := b.makeVXLAN(at, netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472})
		if err != nil {
			return err
		}
		if err := configure(h, Flannel, ifAddr(inner[i], netip.PrefixFrom(inner[i], 32))); err != nil {
			return err
		}
		if err := leadTo(h, dev, dockerMAC(inner[other]), vteps[other].outer, inner[other]); err != nil {
			return err
		}
		for _, to := range behind[other] {
			err = h.RouteReplace(&netlink.Route{
				LinkIndex: dev.Attrs().Index, Flags: int(netlink.FLAG_ONLINK), Gw: inner[other].AsSlice(),
				Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)},
			})
			if err != nil {
				return fmt.Errorf("route to %v: %w", to, err)
			}
		}
	}
	for n := 1; n <= b.opts.Containers; n++ {
		if err := setMTU(b.nodes[Container(n)], "eth0", OverlayMTU); err != nil {
			return err
		}
	}
	return configure(b.nodes[Edge], "lo", ifAddr(FlannelEdge, netip.PrefixFrom(FlannelEdge, 32)))
}

// makeDockerOverlay makes the bridges, each with a VXLAN device, and attaches the
// containers to device's bridge.
func (b *builder) makeDockerOverlay() error {
	for i, at := range vteps {
		h := b.nodes[at.node]
		if err := b.makeOverlayBridge(at.node); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = OverlayVXLAN
		dev, err := b.makeVXLAN(at, netlink.Vxlan{LinkAttrs: attrs, VxlanId: 4097, Port: 4789, Learning: true, Proxy: true})
		if err != nil {
			return err
		}
		if err := enslave(h, OverlayVXLAN, OverlayBridge); err != nil {
			return err
		}
		if err := setUp(h, OverlayVXLAN); err != nil {
			return err
		}
		for _, addr := range b.beyond(at.node) {
			if err := leadTo(h, dev, dockerMAC(addr), vteps[1-i].outer, addr); err != nil {
				return err
			}
		}
	}
	if err := configure(b.nodes[Edge], OverlayBridge, ifAddr(OverlayEdge, overlayNet)); err != nil {
		return err
	}
	for n := 1; n <= b.opts.Containers; n++ {
		if err := b.plugOverlay(n); err != nil {
			return err
		}
	}
	return nil
}

// beyond are the addresses of the docker overlay that are behind the other node.
func (b *builder) beyond(node string) (addrs []netip.Addr) {
	if node == Device {
		return []netip.Addr{OverlayEdge}
	}
	for n := 1; n <= b.opts.Containers; n++ {
		addrs = append(addrs, OverlayAddr(n))
	}
	return addrs
}

// makeOverlayBridge makes the overlay's bridge in a node; edge's has edge's
// address.
func (b *builder) makeOverlayBridge(node string) error {
	h := b.nodes[node]
	there, err := hasLink(h, OverlayBridge)
	if err != nil {
		return err
	}
	if !there {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = OverlayBridge, OverlayMTU
		if node == Edge {
			attrs.HardwareAddr = dockerMAC(OverlayEdge)
		}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s in %s: %w", OverlayBridge, node, err)
		}
		b.undo(func() error { return deleteLink(h, OverlayBridge) })
	}
	return setUp(h, OverlayBridge)
}

// plugOverlay connects container n to the docker overlay's bridge.
func (b *builder) plugOverlay(n int) error {
	w := overlayPort(n)
	if err := b.makeWire(w, dockerMAC(OverlayAddr(n))); err != nil {
		return err
	}
	h := b.nodes[w.node]
	if err := enslave(h, w.dev, OverlayBridge); err != nil {
		return err
	}
	if err := setUp(h, w.dev); err != nil {
		return err
	}
	if err := setMTU(b.nodes[w.peerNode], w.peerDev, OverlayMTU); err != nil {
		return err
	}
	return configure(b.nodes[w.peerNode], w.peerDev, ifAddr(OverlayAddr(n), overlayNet))
}

// setMTU sets a device's MTU.
func setMTU(h *netlink.Handle, dev string, mtu int) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	if err := h.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("MTU of %s: %w", dev, err)
	}
	return nil
}
