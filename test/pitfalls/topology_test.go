package pitfalls

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A station that moves to another bridge port, as when it roams to another access
// point, receives its packets there.
func TestRoamingLeavesNoStalePort(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	c := b.Incoming("udp", 1).GoExpress()
	mac := hardwareAddr(b, lab.Container(1), "eth0")
	b.Sh(lab.Container(1), "ip addr flush dev eth0") // the container must not send
	b.Sh(lab.Container(2), `
		ip addr flush dev eth0
		ip link set eth0 address `+mac.String()+`
		ip addr add 172.17.0.2/16 dev eth0
		ip route replace default via 172.17.0.1`)
	var there net.PacketConn
	err := b.Do(lab.Container(2), func() (err error) {
		there, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", scontest.PortOf(c.Server.LocalAddr())))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	b.OpenWire(lab.Container(2)).Send(append(append(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...), 0x88, 0xb5))

	buf := make([]byte, 1500)
	arrive := func(within time.Duration) error {
		if _, err := c.Client.Write([]byte("where are you?")); err != nil {
			return err
		}
		_ = there.SetReadDeadline(time.Now().Add(within))
		_, _, err := there.ReadFrom(buf)
		return err
	}
	scontest.Eventually(t, "packets arrive at the other port", func() error { return arrive(100 * time.Millisecond) })
	drain := func() (n int) {
		_ = c.Server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for {
			if _, err := c.Server.Read(buf); err != nil {
				return n
			}
			n++
		}
	}
	drain() // discard earlier frames
	for range 50 {
		if err := arrive(scontest.Patience); err != nil {
			t.Fatal(err)
		}
	}
	if n := drain(); n > 0 {
		t.Errorf("%d packets arrive at the former port", n)
	}
}

// hardwareAddr returns the MAC address of a node's device.
func hardwareAddr(b *scontest.Bed, node, dev string) (mac net.HardwareAddr) {
	b.T.Helper()
	err := b.Do(node, func() error {
		iface, err := net.InterfaceByName(dev)
		if err == nil {
			mac = iface.HardwareAddr
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return mac
}

// The second network between edge and device.
var (
	secondEdge   = netip.MustParseAddr("10.78.0.2")
	secondDevice = netip.MustParseAddr("10.78.0.1")
)

// secondConnections returns connections between container 1 and edge through the second
// network, opened from either side.
func secondConnections(b *scontest.Bed, proto string) map[string]*scontest.Connection {
	b.T.Helper()
	p := lab.Publications(1)[0]
	return map[string]*scontest.Connection{
		"outgoing " + proto: b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(secondEdge, 0)),
		"incoming " + proto: b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(secondDevice, p.Device), p.Container, 0),
	}
}

// uplinks are kinds of uplinks, with the commands that create them.
var uplinks = map[string]struct {
	dev, device, edge string
	regular           bool // packets are not express in both directions
}{
	"vlan": {
		dev:    "eth0.5",
		device: "ip link add link eth0 name eth0.5 type vlan id 5",
		edge:   "ip link add link eth0 name eth0.5 type vlan id 5",
	},
	"macvlan": {
		dev:    "mv0",
		device: "ip link add mv0 link eth0 type macvlan mode bridge",
		edge:   "ip link add mv0 link eth0 type macvlan mode bridge",
	},
	"vxlan": {
		dev:    "vx0",
		device: "ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.1 remote 10.77.0.2",
		edge:   "ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1",
	},
	"vxlan with checksums": {
		dev:    "vx0",
		device: "ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.1 remote 10.77.0.2 udpcsum",
		edge:   "ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1 udpcsum",
	},
	"bridge": {
		dev:    "lan0",
		device: bridged,
		edge:   "ip link add lan0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1",
	},
	"bridge with br_netfilter": {
		dev:    "lan0",
		device: bridged,
		edge:   "ip link add lan0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1",
		// At the bridge itself, incoming packets are already translated.
		regular: true,
	},
}

const bridged = `
	ip link add lan0 type bridge
	ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.1 remote 10.77.0.2
	ip link set vx0 master lan0
	ip link set vx0 up`

// Packets leave and enter by an uplink of any kind in a valid form.
func TestUplinkOfAnyKind(t *testing.T) {
	t.Parallel()
	for name, u := range uplinks {
		for _, offload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, offload %v", name, offload), func(t *testing.T) {
				if name == "vlan" && !hasVLAN() {
					t.Skip("no VLAN devices: this kernel has no 8021q")
				}
				b := scontest.New(t, scontest.Layout{Offload: offload})
				if name == "bridge" {
					setBridgeFilter(b, "0")
				}
				b.Sh(lab.Edge, u.edge+`
					ip addr add 10.78.0.2/24 dev `+u.dev+`
					ip link set `+u.dev+` up`)
				b.Sh(lab.Device, u.device+`
					ip addr add 10.78.0.1/24 dev `+u.dev+`
					ip link set `+u.dev+` up
					ip route replace default via 10.78.0.2`)
				b.Up()
				for _, proto := range []string{"tcp", "udp"} {
					for name, c := range secondConnections(b, proto) {
						if u.regular {
							c.MustPing(50)
							c.Exchange(2 << 20)
							continue
						}
						c.GoExpress()
						c.Exchange(2 << 20)
						if f := c.MustFlow(); f.Oif != u.dev {
							t.Errorf("%s leaves by %q", name, f.Oif)
						}
					}
				}
				b.WantNoInvalid()
			})
		}
	}
}

// hasVLAN reports whether the kernel can create VLAN devices.
func hasVLAN() bool {
	return netns.Scratch(func() error {
		if err := exec.Command("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1").Run(); err != nil {
			return err
		}
		return exec.Command("ip", "link", "add", "link", "v0", "name", "v0.5", "type", "vlan", "id", "5").Run()
	}) == nil
}

// setBridgeFilter enables or disables Netfilter's calls in device's bridges. br_netfilter
// enables them when it is loaded.
func setBridgeFilter(b *scontest.Bed, call string) {
	b.T.Helper()
	_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
	switch {
	case err == nil:
		b.Sh(lab.Device, "sysctl -qw net.bridge.bridge-nf-call-iptables="+call)
	case call == "1":
		b.T.Skip("br_netfilter is not loaded")
	}
}

// An overlay device at the containers' bridge reaches other machines without a route:
// its traffic stays regular, and SCON reports that.
func TestOverlayOnBridgeStaysRegular(t *testing.T) {
	t.Parallel()
	for _, offload := range []bool{false, true} {
		t.Run(fmt.Sprintf("offload %v", offload), func(t *testing.T) {
			b := scontest.New(t, scontest.Layout{Offload: offload})
			b.Sh(lab.Edge, `
				ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1
				ip addr add 172.17.0.100/16 dev vx0
				ip link set vx0 up`)
			setBridgeFilter(b, "0")
			b.Sh(lab.Device, `
				ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.1 remote 10.77.0.2
				ip link set vx0 master docker0
				ip link set vx0 up`)
			b.Up()
			for _, proto := range []string{"tcp", "udp"} {
				c := b.Connect(proto, lab.Container(1), lab.Edge, netip.MustParseAddrPort("172.17.0.100:0"))
				c.MustPing(50)
				c.Exchange(2 << 20)
				x, err := b.Daemon.Explain(fmt.Sprintf("%s:%v->%v", proto, c.Client.LocalAddr(), c.Client.RemoteAddr()))
				if err != nil {
					t.Fatal(err)
				}
				if x.Express || len(x.Findings) == 0 {
					t.Errorf("explanation of %s: %+v", proto, x)
				}
			}
			if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "vx0" {
				t.Errorf("devices without hooks: %+v, want vx0", s)
			}
			b.Outgoing("tcp", 1).GoExpress()
			b.WantNoInvalid()
		})
	}
}

// Packets leave by an uplink without MAC addresses, such as PPPoE, without a MAC
// header, and packets that arrive by it get one.
func TestUplinkWithoutMAC(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	outside, inside := b.OpenTun(lab.Edge, "ppp0", false), b.OpenTun(lab.Device, "ppp0", false)
	go scontest.CopyPackets(inside, outside)
	go scontest.CopyPackets(outside, inside)
	b.Sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev ppp0
		ip link set ppp0 up`)
	b.Sh(lab.Device, `
		ip addr add 10.78.0.1/24 dev ppp0
		ip link set ppp0 up
		ip route replace default via 10.78.0.2`)
	b.Up()
	for _, proto := range []string{"tcp", "udp"} {
		for name, c := range secondConnections(b, proto) {
			c.GoExpress()
			c.Exchange(64 << 10)
			if f := c.MustFlow(); f.Oif != "ppp0" || f.NextHop != "" {
				t.Errorf("%s leaves by %q to %q", name, f.Oif, f.NextHop)
			}
		}
	}
	b.Outgoing("tcp", 1).GoExpress() // by eth0
	b.WantNoInvalid()
}

// A VPN tunnel of a container is one connection: its packets are express, and the inner
// packets arrive.
func TestTunnelOutOfContainer(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, connect := range scontest.Directions {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			outer := connect(b, "udp", 1).GoExpress()
			ends := map[string]net.Conn{lab.Container(1): outer.Client, lab.Edge: outer.Server}
			if outer.From == lab.Edge {
				ends = map[string]net.Conn{lab.Container(1): outer.Server, lab.Edge: outer.Client}
			}
			for node, end := range ends {
				_ = end.SetReadDeadline(time.Time{})
				addr := "10.88.0.1/24"
				if node == lab.Edge {
					addr = "10.88.0.2/24"
				}
				dev := "vpn" + strconv.Itoa(len(name)) + node[:1]
				tun := b.OpenTun(node, dev, false)
				t.Cleanup(func() { end.Close() })
				go scontest.CopyPackets(end, tun)
				go scontest.CopyPackets(tun, end)
				b.Sh(node, `
					ip addr add `+addr+` dev `+dev+`
					ip link set `+dev+` mtu 1400 up`)
			}
			for _, proto := range []string{"tcp", "udp"} {
				inner := b.Connect(proto, lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.88.0.2:0"))
				inner.MustPing(50)
				inner.Exchange(256 << 10)
				outer.WaitExpress(inner.Ping)
			}
		})
	}
	b.WantNoInvalid()
}

// Requests and replies on different uplinks arrive, and both are express.
func TestAsymmetricRoute(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up
		ip route add 10.99.0.1/32 via 10.77.0.2 dev eth0`)
	b.Sh(lab.Edge, `
		sysctl -qw net.ipv4.conf.all.rp_filter=0
		sysctl -qw net.ipv4.conf.default.rp_filter=0
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up
		ip addr add 10.99.0.1/32 dev lo
		ip rule add from 10.99.0.1 table 77
		ip route add default via 10.78.0.1 dev eth1 table 77`)
	b.Up()
	for _, proto := range []string{"tcp", "udp"} {
		c := b.Connect(proto, lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.99.0.1:0"))
		wire := b.OpenDevice(lab.Device, "eth1")
		c.GoExpress()
		c.Exchange(2 << 20)
		if len(wire.Arrived(func([]byte) bool { return true })) < 10 {
			t.Errorf("%s: replies did not enter by eth1", proto)
		}
		if f := c.MustFlow(); f.Oif != "eth0" {
			t.Errorf("%s: requests leave by %s", proto, f.Oif)
		}
	}
	b.WantNoInvalid()
}
