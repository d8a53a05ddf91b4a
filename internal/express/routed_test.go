package express_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// routedPort is published by device for the routed container, whose address is
// 172.18.0.9.
const routedPort = 8099

// route takes container 2 off the bridge and routes to it, as the CNI plugin
// ptp and Calico do.
func route(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, "ip link del veth2\nip link add cali2 type veth peer name eth0 netns "+b.Node(lab.Container(2)))
	setRoutes(b)
}

// routeByNetkit does the same with a netkit pair.
func routeByNetkit(b *scontest.Bed, mode netlink.NetkitMode) {
	b.T.Helper()
	b.Sh(lab.Device, "ip link del veth2")
	inside, err := os.Open(b.Node(lab.Container(2)))
	if err != nil {
		b.T.Fatal(err)
	}
	defer inside.Close()
	attrs, peer := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
	attrs.Name, peer.Name, peer.Namespace = "cali2", "eth0", netlink.NsFd(inside.Fd())
	pair := &netlink.Netkit{LinkAttrs: attrs, Mode: mode, Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT}
	pair.SetPeerAttrs(&peer)
	if err := b.Do(lab.Device, func() error { return netlink.LinkAdd(pair) }); err != nil {
		b.T.Fatal(err)
	}
	setRoutes(b)
}

// setRoutes sets addresses, routes and rules of container 2.
func setRoutes(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, `
		sysctl -qw net.ipv4.conf.cali2.proxy_arp=1
		ip link set cali2 up
		ip route add 172.18.0.9/32 dev cali2
		ip route add 172.18.0.10/32 dev cali2
		iptables-nft -I DOCKER-USER -i cali2 -j ACCEPT
		iptables-nft -I DOCKER-USER -o cali2 -j ACCEPT
		iptables-nft -t nat -A POSTROUTING -s 172.18.0.9 -o eth0 -j MASQUERADE
		iptables-nft -t nat -A PREROUTING -i eth0 -p tcp --dport 8099 -j DNAT --to-destination 172.18.0.9
		iptables-nft -t nat -A PREROUTING -i eth0 -p udp --dport 8099 -j DNAT --to-destination 172.18.0.9`)
	b.Sh(lab.Container(2), `
		ip addr add 172.18.0.9/32 dev eth0
		ip link set eth0 up
		ip route add 169.254.1.1 dev eth0
		ip route add default via 169.254.1.1`)
}

// leftOf returns what is left of a device that is gone.
func leftOf(b *scontest.Bed, dev string) error {
	s := b.Status()
	for _, h := range s.Hooks {
		if h.Dev == dev {
			return fmt.Errorf("hook %+v", h)
		}
	}
	for _, c := range s.Containers {
		if c.Dev == dev {
			return fmt.Errorf("container %+v", c)
		}
	}
	if n := s.Totals.Entries; n > 1 { // of container 1
		return fmt.Errorf("%d Conentries", n)
	}
	return nil
}

// A routed container, on no bridge, goes express as others do, under the rules
// for the device that its packets come by.
func TestRoutedContainer(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]scontest.Layout{"tcx": {}, "clsact": {Clsact: true}, "offloads": {Offload: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout.Containers = 2
			b := scontest.New(t, layout)
			route(b)
			routedGoesExpress(t, b)
		})
	}
}

// The same by a netkit pair, with MAC addresses and without.
func TestRoutedNetkit(t *testing.T) {
	t.Parallel()
	scontest.NeedNetkit(t)
	for name, mode := range map[string]netlink.NetkitMode{"l2": netlink.NETKIT_MODE_L2, "l3": netlink.NETKIT_MODE_L3} {
		for offloads, on := range map[string]bool{"": false, ", offloads": true} {
			t.Run(name+offloads, func(t *testing.T) {
				b := scontest.New(t, scontest.Layout{Containers: 2, Offload: on})
				routeByNetkit(b, mode)
				routedGoesExpress(t, b)
			})
		}
	}
}

// routedGoesExpress starts the daemon and checks the connections of the routed
// container 2, and those of container 1 on the bridge.
func routedGoesExpress(t *testing.T, b *scontest.Bed) {
	t.Helper()
	b.Up()
	all := make(map[string]*scontest.Connection)
	for _, proto := range []string{"tcp", "udp"} {
		all["outgoing "+proto] = b.Connect(proto, lab.Container(2), lab.Edge, netip.AddrPortFrom(lab.EdgeAddr, 0))
		all["incoming "+proto] = b.ConnectTo(proto, lab.Edge, lab.Container(2), netip.AddrPortFrom(lab.DeviceAddr, routedPort), routedPort, 0)
	}
	for name, c := range all {
		c.ExchangeExpress(1 << 20)
		if f := c.MustFlow(); f.Oif != "eth0" {
			t.Errorf("%s goes out of %q", name, f.Oif)
		}
	}
	b.Outgoing("udp", 1).GoExpress() // from the bridge
	if c, _ := b.Container(1); c.Bridge != lab.Bridge {
		t.Errorf("container 1 is on bridge %q", c.Bridge)
	}

	// A rule about the device that IP sees.
	c := all["outgoing udp"]
	b.Sh(lab.Device, "iptables-nft -I FORWARD -i cali2 -p udp -j DROP")
	waitLost(t, c.Client, c.Server)
	b.Sh(lab.Device, "iptables-nft -D FORWARD 1")
	c.GoExpress()
	b.Sh(lab.Device, "iptables-nft -I FORWARD -i cali2 -p udp -m limit --limit 100/s -j ACCEPT")
	c.WaitGone()
	b.Sh(lab.Device, "iptables-nft -D FORWARD 1")
	c.GoExpress()

	// Its address moves to the bridge: the route is gone.
	b.Sh(lab.Device, "ip link del cali2")
	scontest.Eventually(t, "nothing of it is left", func() error { return leftOf(b, "cali2") })
	b.WantNoInvalid()
}
