package topology

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
)

// String returns a link's name for messages: "a:eth1 - b:eth1".
func (l Link) String() string {
	var ends []string
	for _, e := range l.Ends {
		ends = append(ends, e.Node+":"+e.Interface)
	}
	return strings.Join(ends, " - ")
}

// hostAddr returns an address with the prefix of a single host.
func hostAddr(addr netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen()))}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// makeLink makes a link's devices and brings them up.
func (b *builder) makeLink(l Link) (err error) {
	if l.Type == Veth {
		err = b.makeVeth(l)
	} else {
		for _, e := range l.Ends {
			if err = b.makeEnd(l, e); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	for _, e := range l.Ends {
		if err := b.configure(l, e); err != nil {
			return fmt.Errorf("%s:%s: %w", e.Node, e.Interface, err)
		}
	}
	return nil
}

// makeEnd moves a device of the host, or a device on top of it, into a node.
func (b *builder) makeEnd(l Link, e End) error {
	switch l.Type {
	case Macvlan:
		return b.makeMacvlan(l, e)
	case SRIOV:
		return b.takeVF(l, e)
	case HostDevice:
		return b.take(e, e.Host, e.Interface)
	}
	return fmt.Errorf("type %q is unknown", l.Type)
}

// makeVeth makes a pair with its ends in the nodes, since moving a device takes the
// kernel 16 ms.
func (b *builder) makeVeth(l Link) error {
	here, there := l.Ends[0], l.Ends[1]
	peer, err := netns.Open(b.Path(there.Node))
	if err != nil {
		return err
	}
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = here.Interface
	attrs.MTU = l.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = there.Interface
	veth.PeerMTU = uint32(l.MTU)
	veth.PeerNamespace = netlink.NsFd(peer.Fd())
	if err := b.nodes[here.Node].LinkAdd(veth); err != nil {
		return fmt.Errorf("add the veth pair: %w", err)
	}
	return nil
}

var macvlanModes = map[string]netlink.MacvlanMode{
	"":         netlink.MACVLAN_MODE_BRIDGE,
	"bridge":   netlink.MACVLAN_MODE_BRIDGE,
	"private":  netlink.MACVLAN_MODE_PRIVATE,
	"vepa":     netlink.MACVLAN_MODE_VEPA,
	"passthru": netlink.MACVLAN_MODE_PASSTHRU,
}

// makeMacvlan makes a macvlan on a device of the host in a node.
func (b *builder) makeMacvlan(l Link, e End) error {
	parent, err := b.hostDevice(e.Host)
	if err != nil {
		return err
	}
	node, err := netns.Open(b.Path(e.Node))
	if err != nil {
		return err
	}
	defer node.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = e.Interface, l.MTU
	attrs.ParentIndex = parent.Attrs().Index
	attrs.Namespace = netlink.NsFd(node.Fd())
	if err := b.host.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: macvlanModes[l.Mode]}); err != nil {
		return fmt.Errorf("add a macvlan of %s: %w", e.Host, err)
	}
	return nil
}

// hostDevice returns a device of the host.
func (b *builder) hostDevice(name string) (netlink.Link, error) {
	link, err := b.host.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf(`this machine has no device %q; "ip link" lists them`, name)
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	return link, nil
}

// configure sets an end's address, brings it up and adds its impairments.
func (b *builder) configure(l Link, e End) error {
	h := b.nodes[e.Node]
	link, err := h.LinkByName(e.Interface)
	if err != nil {
		return fmt.Errorf("find the device: %w", err)
	}
	if l.MTU != 0 && link.Attrs().MTU != l.MTU {
		if err := h.LinkSetMTU(link, l.MTU); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", l.MTU, err)
		}
	}
	if e.IPv4.IsValid() {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(e.IPv4)}); err != nil {
			return fmt.Errorf("address %s: %w", e.IPv4, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("switch on: %w", err)
	}
	if l.impaired() {
		return impair(h, link, l)
	}
	return nil
}
