package lab

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/host/sysctl"
)

// Second is the device of the second uplink, of the kind of Options.Uplink, in device
// and edge:
//
//	edge up0 10.78.0.2, fd00:78::2 ==== 10.78.0.1, fd00:78::1 up0 device
const Second = "up0"

// Values of Options.Uplink.
const (
	UplinkVLAN      = "vlan"      // tag 5 over Uplink
	UplinkMacvlan   = "macvlan"   // over Uplink
	UplinkBond      = "bond"      // of two veth pairs, hashed by addresses and ports
	UplinkBridge    = "bridge"    // with a veth as its port; bridged packets pass no rules
	UplinkWireGuard = "wireguard" // over Uplink
	UplinkIPIP      = "ipip"      // over Uplink; IPv4 alone
	UplinkGRE       = "gre"       // over Uplink
)

// FirstPort and SecondPort are the ports of a bond; FirstPort is that of a bridge.
const (
	FirstPort  = "p1"
	SecondPort = "p2"
)

// Addresses of the second uplink.
var (
	SecondEdge    = netip.MustParseAddr("10.78.0.2")
	SecondDevice  = netip.MustParseAddr("10.78.0.1")
	SecondEdge6   = netip.MustParseAddr("fd00:78::2")
	SecondDevice6 = netip.MustParseAddr("fd00:78::1")

	secondNet  = netip.MustParsePrefix("10.78.0.0/24")
	secondNet6 = netip.MustParsePrefix("fd00:78::/64")
)

// kind is one of uplinks.
type kind struct {
	name  string
	over  bool     // over Uplink
	ports []string // ends of wires of its own, in both nodes
	link  func(netlink.LinkAttrs) netlink.Link
	ends  func(link netlink.Link, local, remote netip.Addr) // of a tunnel
}

var kinds = []kind{
	{name: UplinkVLAN, over: true, link: func(a netlink.LinkAttrs) netlink.Link {
		return &netlink.Vlan{LinkAttrs: a, VlanId: 5}
	}},
	{name: UplinkMacvlan, over: true, link: func(a netlink.LinkAttrs) netlink.Link {
		return &netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}
	}},
	{name: UplinkBond, ports: []string{FirstPort, SecondPort}, link: func(a netlink.LinkAttrs) netlink.Link {
		bond := netlink.NewLinkBond(a)
		bond.Mode, bond.XmitHashPolicy = netlink.BOND_MODE_BALANCE_XOR, netlink.BOND_XMIT_HASH_POLICY_LAYER3_4
		bond.Miimon = 20 // ms between two checks of the ports
		return bond
	}},
	{name: UplinkBridge, ports: []string{FirstPort}, link: func(a netlink.LinkAttrs) netlink.Link {
		return &netlink.Bridge{LinkAttrs: a}
	}},
	{name: UplinkWireGuard, link: func(a netlink.LinkAttrs) netlink.Link {
		return &netlink.Wireguard{LinkAttrs: a}
	}},
	{
		name: UplinkIPIP,
		link: func(a netlink.LinkAttrs) netlink.Link { return &netlink.Iptun{LinkAttrs: a} },
		ends: func(l netlink.Link, local, remote netip.Addr) {
			t := l.(*netlink.Iptun)
			t.Local, t.Remote, t.PMtuDisc = local.AsSlice(), remote.AsSlice(), 1
		},
	},
	{
		name: UplinkGRE,
		link: func(a netlink.LinkAttrs) netlink.Link { return &netlink.Gretun{LinkAttrs: a, Local: net.IPv4zero} },
		ends: func(l netlink.Link, local, remote netip.Addr) {
			t := l.(*netlink.Gretun)
			t.Local, t.Remote, t.PMtuDisc = local.AsSlice(), remote.AsSlice(), 1
		},
	},
}

// UplinkKinds lists the values of Options.Uplink.
func UplinkKinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// kind is the kind of the options, the zero value without one.
func (o Options) kind() (k kind) {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == o.Uplink }); i >= 0 {
		k = kinds[i]
	}
	return k
}

// wires are those of the kind.
func (k kind) wires() (all []wire) {
	for _, p := range k.ports {
		all = append(all, wire{node: Device, dev: p, peerNode: Edge, peerDev: p})
	}
	return all
}

// makeSecond connects device and edge by the second uplink.
func (b *builder) makeSecond() error {
	k := b.opts.kind()
	for _, w := range k.wires() {
		if err := b.makeWire(w, nil); err != nil {
			return err
		}
	}
	made := false
	for _, node := range []string{Device, Edge} {
		isNew, err := b.addSecond(node, k)
		if err != nil {
			return err
		}
		made = made || isNew
	}
	if k.name == UplinkWireGuard && made {
		if err := b.exchangeKeys(); err != nil {
			return err
		}
	}
	if err := b.address(Edge, Second, ifAddr(SecondEdge, secondNet), ifAddr(SecondEdge6, secondNet6)); err != nil {
		return err
	}
	if err := b.address(Device, Second, ifAddr(SecondDevice, secondNet), ifAddr(SecondDevice6, secondNet6)); err != nil {
		return err
	}
	return b.fitSecond()
}

// addSecond makes the device in a node, unless it exists.
func (b *builder) addSecond(node string, k kind) (isNew bool, err error) {
	h := b.nodes[node]
	there, err := hasLink(h, Second)
	if err != nil {
		return false, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Second
	if k.over {
		under, err := h.LinkByName(Uplink)
		if err != nil {
			return false, fmt.Errorf("find %s: %w", Uplink, err)
		}
		attrs.ParentIndex = under.Attrs().Index
	}
	link := k.link(attrs)
	if k.ends != nil {
		i := slices.IndexFunc(vteps[:], func(v vtep) bool { return v.node == node })
		k.ends(link, vteps[i].outer, vteps[1-i].outer)
	}
	if there {
		return false, sameKind(h, link)
	}
	err = h.LinkAdd(link)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, fmt.Errorf("this kernel has no devices of kind %s: %w", link.Type(), err)
	}
	if err != nil {
		return false, fmt.Errorf("add %s %s in %s: %w", link.Type(), Second, node, err)
	}
	b.undo(func() error { return deleteLink(h, Second) })
	if k.name == UplinkBridge {
		if err := netns.Do(b.Node(node), unfilterBridges); err != nil {
			return false, err
		}
	}
	for _, port := range k.ports {
		if err := enslave(h, port, Second); err != nil {
			return false, err
		}
		if err := setUp(h, port); err != nil {
			return false, err
		}
	}
	return true, nil
}

// sameKind refuses an existing second uplink of another kind.
func sameKind(h *netlink.Handle, want netlink.Link) error {
	link, err := h.LinkByName(Second)
	if err != nil {
		return fmt.Errorf("find %s: %w", Second, err)
	}
	if link.Type() != want.Type() {
		return fmt.Errorf("%s is a %s already; \"scon lab down\" removes it", Second, link.Type())
	}
	return nil
}

// unfilterBridges disables bridge netfilter in the current namespace: packets that
// enter by a bridge with it stay regular.
func unfilterBridges() error {
	return sysctl.Set([]sysctl.Setting{
		{Name: "net/bridge/bridge-nf-call-iptables", Value: "0"},
		{Name: "net/bridge/bridge-nf-call-ip6tables", Value: "0"},
	})
}

// exchangeKeys makes each end of the tunnel the only peer of the other.
func (b *builder) exchangeKeys() error {
	var private, public [2]string
	for i := range vteps {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
		private[i] = base64.StdEncoding.EncodeToString(key.Bytes())
		public[i] = base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
	}
	for i, at := range vteps {
		other := 1 - i
		cmd := exec.Command("wg", "set", Second, "listen-port", "51820", "private-key", "/proc/self/fd/0",
			"peer", public[other], "endpoint", vteps[other].outer.String()+":51820", "allowed-ips", "0.0.0.0/0,::/0")
		cmd.Stdin = strings.NewReader(private[i])
		if err := netns.Do(b.Node(at.node), func() error { return runTool(cmd, "wireguard-tools") }); err != nil {
			return err
		}
	}
	return nil
}

// fitSecond lowers the MTU of the containers to that of the second uplink.
func (b *builder) fitSecond() error {
	second, err := b.nodes[Device].LinkByName(Second)
	if err != nil {
		return fmt.Errorf("find %s: %w", Second, err)
	}
	for n := 1; n <= b.opts.Containers; n++ {
		h := b.nodes[Container(n)]
		link, err := h.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0: %w", err)
		}
		if link.Attrs().MTU <= second.Attrs().MTU {
			continue
		}
		if err := setMTU(h, "eth0", second.Attrs().MTU); err != nil {
			return err
		}
	}
	return nil
}

// secondEnds are the ends of the second uplink that report a carrier.
func (b *builder) secondEnds() []wire {
	if b.opts.Uplink == "" || b.opts.Uplink == UplinkWireGuard || b.opts.kind().ends != nil {
		return nil
	}
	return []wire{{node: Device, dev: Second, peerNode: Edge, peerDev: Second}}
}
