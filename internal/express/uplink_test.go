package express_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// uplink is a kind of device that a route may use: the lab's second uplink,
// lab.Second, or one that a test creates in its place.
type uplink struct {
	kind   string                // as lab.Options.Uplink; or
	lay    func(b *scontest.Bed) // makes the device in device and edge
	change func(b *scontest.Bed) // lets packets take another path below it; nil if there is none
	remove string                // removes it, "ip link del up0" if it is ""
	clsact bool                  // hook by clsact, whatever the kernel has
	named  bool                  // the daemon is configured with it: a wire of the lab is like a container's
	ipv4   bool                  // the device carries IPv4 alone
	skips  bool                  // express packets skip the device
	// gateway is what a route by the device has in the end; 10.78.0.2 if it is empty.
	gateway string
}

var uplinks = map[string]uplink{
	"vlan":                {kind: lab.UplinkVLAN},
	"macvlan":             {kind: lab.UplinkMacvlan},
	"bond, active-backup": {lay: backedUp("none"), change: failOver},
	"bond, active-backup, MAC address of the port": {lay: backedUp("active"), change: failOver},
	"bond, 802.3ad":      {lay: aggregated, change: loseFirst},
	"bond, balance-rr":   {lay: bonded("balance-rr"), change: loseFirst},
	"bond, balance-xor":  {kind: lab.UplinkBond, change: loseFirst},
	"bridge":             {kind: lab.UplinkBridge, change: changePort, named: true},
	"tun":                {lay: tunnelled(false)},
	"tun, clsact":        {lay: tunnelled(true), clsact: true},
	"tun with offloads":  {lay: tunnelled(true)},
	"wireguard":          {kind: lab.UplinkWireGuard, change: moveWireguard},
	"ipip":               {kind: lab.UplinkIPIP, ipv4: true, skips: true},
	"ipip by route":      {lay: layByRoute, change: moveGateway, ipv4: true, skips: true, gateway: otherGateway},
	"gre":                {kind: lab.UplinkGRE},
	"ip6tnl":             {lay: overIPv6("ip6tnl mode any")},
	"ip6gre":             {lay: overIPv6("ip6gre")},
	"vlan of a bond":     {lay: vlanOfBond, change: failOver},
	"bridge with a bond": {lay: bridgedBond, change: failOver},
}

// layPorts creates two wires between device and edge, p1 and p2, both down.
func layPorts(b *scontest.Bed) {
	b.T.Helper()
	layPort(b, "p1")
	layPort(b, "p2")
}

func layPort(b *scontest.Bed, name string) {
	b.T.Helper()
	b.Sh(lab.Device, fmt.Sprintf("ip link add %s type veth peer name %[1]s netns %s", name, b.Node(lab.Edge)))
}

// bond puts both wires into a bond of a node.
func bond(b *scontest.Bed, node, name, mode string) {
	b.T.Helper()
	b.Sh(node, `
		ip link add `+name+` type bond miimon 20 mode `+mode+`
		ip link set p1 master `+name+`
		ip link set p2 master `+name+`
		ip link set `+name+` up`)
}

func needBond(b *scontest.Bed) {
	b.T.Helper()
	need(b, "ip link add probe type bond", "ip link del probe")
}

// bonded has a bond at both ends.
func bonded(mode string) func(*scontest.Bed) {
	return func(b *scontest.Bed) {
		b.T.Helper()
		needBond(b)
		layPorts(b)
		bond(b, lab.Device, "up0", mode)
		bond(b, lab.Edge, "up0", mode)
	}
}

// aggregated has a bond at both ends that negotiates which ports to use
// (LACP). Until both have agreed, packets are lost.
func aggregated(b *scontest.Bed) {
	b.T.Helper()
	bonded("802.3ad lacp_rate fast")(b)
	const inUse = 0x10 | 0x20 // collecting and distributing
	scontest.Eventually(b.T, "both ends use both ports", func() error {
		for _, node := range []string{lab.Device, lab.Edge} {
			for _, port := range []string{"p1", "p2"} {
				s, ok := linkOf(b, node, port).Attrs().Slave.(*netlink.BondSlave)
				if !ok || s.AdActorOperPortState&inUse != inUse || s.AdPartnerOperPortState&inUse != inUse {
					return fmt.Errorf("%s of %s: %+v", port, node, s)
				}
			}
		}
		return nil
	})
}

// backedUp has a bond with one active port, and a switch at the other end.
func backedUp(failOverMAC string) func(*scontest.Bed) {
	return func(b *scontest.Bed) {
		b.T.Helper()
		needBond(b)
		layPorts(b)
		bridgePorts(b, lab.Edge, "up0", "p1", "p2")
		bond(b, lab.Device, "up0", "active-backup fail_over_mac "+failOverMAC)
	}
}

// bridgePorts makes a bridge with ports that are up.
func bridgePorts(b *scontest.Bed, node, name string, ports ...string) {
	b.T.Helper()
	b.Sh(node, "ip link add "+name+" type bridge")
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		b.Sh(node, `
			sysctl -qw net.bridge.bridge-nf-call-iptables=0
			sysctl -qw net.bridge.bridge-nf-call-ip6tables=0`)
	}
	for _, p := range ports {
		b.Sh(node, "ip link set "+p+" master "+name+"\nip link set "+p+" up")
	}
}

// changePort takes the wire out of both bridges, and puts another one in.
func changePort(b *scontest.Bed) {
	b.T.Helper()
	layPort(b, "p2")
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, `
			ip link set p1 nomaster
			ip link set p1 down
			ip link set p2 master up0
			ip link set p2 up`)
	}
}

func vlanOfBond(b *scontest.Bed) {
	b.T.Helper()
	need(b, "ip link add link eth0 name up0 type vlan id 5", "ip link del up0")
	needBond(b)
	layPorts(b)
	bridgePorts(b, lab.Edge, "lan0", "p1", "p2")
	bond(b, lab.Device, "lan0", "active-backup")
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, `
			ip link add link lan0 name up0 type vlan id 5
			ip link set lan0 up`)
	}
}

func bridgedBond(b *scontest.Bed) {
	b.T.Helper()
	needBond(b)
	layPorts(b)
	bridgePorts(b, lab.Edge, "up0", "p1", "p2")
	bond(b, lab.Device, "lan0", "active-backup")
	bridgePorts(b, lab.Device, "up0", "lan0")
}

// failOver activates the other port of device's bond, which sends everything
// from then on.
func failOver(b *scontest.Bed) {
	b.T.Helper()
	name, active := "up0", "p2"
	if linkOf(b, lab.Device, "up0").Type() != "bond" {
		name = "lan0"
	}
	out := b.Sh(lab.Device, "ip -d link show "+name)
	if strings.Contains(out, "active_slave p2") {
		active = "p1"
	}
	b.Sh(lab.Device, "ip link set "+name+" type bond active_slave "+active)
	idle := linkOf(b, lab.Device, map[string]string{"p1": "p2", "p2": "p1"}[active])
	scontest.Eventually(b.T, "the active port sends", func() error {
		if l := linkOf(b, lab.Device, active); l.Attrs().Statistics.TxPackets < 100 {
			return fmt.Errorf("%d packets", l.Attrs().Statistics.TxPackets)
		}
		return nil
	})
	now := linkOf(b, lab.Device, idle.Attrs().Name)
	if n := now.Attrs().Statistics.TxPackets - idle.Attrs().Statistics.TxPackets; n > 10 {
		b.T.Errorf("%d packets have left by the port that is not active", n)
	}
}

// loseFirst cuts a wire.
func loseFirst(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, "ip link set p1 down")
}

func linkOf(b *scontest.Bed, node, name string) (l netlink.Link) {
	b.T.Helper()
	err := b.Do(node, func() (err error) {
		l, err = netlink.LinkByName(name)
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return l
}

func tunnelled(offload bool) func(*scontest.Bed) {
	return func(b *scontest.Bed) {
		b.T.Helper()
		outside, inside := b.OpenTun(lab.Edge, "up0", offload), b.OpenTun(lab.Device, "up0", offload)
		go scontest.CopyPackets(inside, outside)
		go scontest.CopyPackets(outside, inside)
	}
}

// layByRoute makes tunnels of IPIP without a remote end, as Calico has them: a packet is for the
// gateway of its route, the other machine's address.
func layByRoute(b *scontest.Bed) {
	b.T.Helper()
	need(b, "ip link add up0 type ipip local 10.77.0.1", "ip link del up0")
	lay := func(node string, own, other, at, to netip.Addr) {
		b.Sh(node, fmt.Sprintf(`
			ip link add up0 type ipip local %v
			ip addr add %v/32 dev up0
			ip link set up0 up
			ip route add %v/32 via %v dev up0 onlink`, at, own, other, to))
	}
	lay(lab.Device, lab.SecondDevice, lab.SecondEdge, lab.DeviceAddr, lab.EdgeAddr)
	lay(lab.Edge, lab.SecondEdge, lab.SecondDevice, lab.EdgeAddr, lab.DeviceAddr)
}

// otherGateway is a second address of edge.
const otherGateway = "10.77.0.3"

// moveGateway gives edge's end another address.
func moveGateway(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Edge, `
		ip addr add `+otherGateway+`/24 dev eth0
		ip link add up1 type ipip local `+otherGateway+`
		ip link set up1 up
		sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.up1.rp_filter=0`)
	b.Sh(lab.Device, "ip route replace 10.78.0.2/32 via "+otherGateway+" dev up0 onlink")
}

// overIPv6 makes a tunnel over the IPv6 addresses of eth0.
func overIPv6(kind string) func(*scontest.Bed) {
	return func(b *scontest.Bed) {
		b.T.Helper()
		add := func(local, remote netip.Addr) string {
			return fmt.Sprintf("ip link add up0 type %s local %v remote %v encaplimit none", kind, local, remote)
		}
		need(b, add(lab.DeviceAddr6, lab.EdgeAddr6), "ip link del up0")
		b.Sh(lab.Device, add(lab.DeviceAddr6, lab.EdgeAddr6))
		b.Sh(lab.Edge, add(lab.EdgeAddr6, lab.DeviceAddr6))
	}
}

// moveWireguard gives edge's end another port, as if it roamed.
func moveWireguard(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Edge, "wg set up0 listen-port 51821")
}

// overSecond connects container 1 with edge by the second network, in both directions.
func overSecond(b *scontest.Bed, proto string, ipv4 bool) map[string]*scontest.Connection {
	b.T.Helper()
	p := lab.Publications(1)[0]
	all := make(map[string]*scontest.Connection)
	ends := map[string][2]netip.Addr{"IPv4": {lab.SecondDevice, lab.SecondEdge}}
	if !ipv4 {
		ends["IPv6"] = [2]netip.Addr{lab.SecondDevice6, lab.SecondEdge6}
	}
	for family, addrs := range ends {
		device, edge := addrs[0], addrs[1]
		all[family+" outgoing "+proto] = b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(edge, 0))
		all[family+" incoming "+proto] = b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(device, p.Device), p.Container, 0)
	}
	return all
}

// Packets of both families go express in both directions by every kind of
// device that a route can use, and all arrive. When the path below it changes,
// they take the new one; when the device is removed, connections with another
// route take that.
func TestUplinkKinds(t *testing.T) {
	t.Parallel()
	for name, kind := range uplinks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind.test(t)
		})
	}
}

// The same for PPP over Ethernet, which kernels for virtual machines lack.
func TestUplinkPPP(t *testing.T) {
	t.Parallel()
	uplink{lay: pppoe}.test(t)
}

func (u uplink) test(t *testing.T) {
	needKind(t, u.kind)
	b := scontest.New(t, scontest.Layout{IPv6: true, Offload: true, Clsact: u.clsact, Uplink: u.kind, Config: func(c *config.Config) {
		if u.named {
			c.Bridges, c.Uplinks = config.Devices{lab.Bridge}, config.Devices{lab.Uplink, lab.Second}
		}
	}})
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, "ip link set eth0 mtu 1600") // room for headers
	}
	b.Sh(lab.Container(1), "ip link set eth0 mtu 1500")
	if u.lay != nil {
		u.lay(b)
		for node, n := range map[string]string{lab.Device: "1", lab.Edge: "2"} {
			b.Sh(node, `
				ip addr add 10.78.0.`+n+`/24 dev up0
				ip addr add fd00:78::`+n+`/64 dev up0 nodad
				ip link set up0 up`)
		}
	}
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, "ip link set up0 mtu 1500")
	}
	b.Up()
	awaitSecond(b, u.ipv4)
	for _, proto := range []string{"tcp", "udp"} {
		for name, c := range overSecond(b, proto, u.ipv4) {
			size := 256 << 10
			if u.skips { // a lease of a second, at whose end a segment of 64 KiB goes regular
				size = 2 << 20
			}
			c.ExchangeExpress(size)
			c.Exchange(64 << 10) // with fragments
			if f := c.MustFlow(); f.Oif != "up0" || (f.Overlay == lab.Uplink) != u.skips {
				t.Errorf("%s goes out of %q, skipped by %q", name, f.Oif, f.Overlay)
			}
			if u.skips {
				skipsSecond(c)
			}
			c.Close()
		}
	}
	if u.change != nil {
		s := scontest.StartStream(b.Connect("tcp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.78.0.2:0")))
		s.C.WaitExpress(nil)
		u.change(b)
		s.Proceed(t, 256<<10)
		s.C.WaitExpress(nil)
		s.Stop(t)
	}
	loseUplink(b, cmp.Or(u.gateway, "10.78.0.2"), cmp.Or(u.remove, "ip link del up0"))
	b.WantNoInvalid()
}

// skipsSecond sends pings until nearly all packets skip the second uplink, both ways.
func skipsSecond(c *scontest.Connection) {
	t := c.B.T
	t.Helper()
	const count = 50
	scontest.Eventually(t, "packets skip "+lab.Second, func() error {
		before := linkOf(c.B, lab.Device, lab.Second).Attrs().Statistics
		c.MustPing(count)
		after := linkOf(c.B, lab.Device, lab.Second).Attrs().Statistics
		if in, out := after.RxPackets-before.RxPackets, after.TxPackets-before.TxPackets; in > count/5 || out > count/5 {
			return fmt.Errorf("of %d packets each way %d came by it, and %d left", count, in, out)
		}
		return nil
	})
}

// needKind skips a test where the lab cannot create a second uplink of a kind.
func needKind(t *testing.T, kind string) {
	t.Helper()
	if kind == "" {
		return
	}
	prefix := fmt.Sprintf("scon-kind%d-%s-", os.Getpid(), kind)
	_, err := lab.Up(lab.Options{Prefix: prefix, Uplink: kind})
	if down := lab.Down(prefix); down != nil {
		t.Error(down)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || err != nil && strings.Contains(err.Error(), "not in PATH") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitSecond waits until the second network works.
func awaitSecond(b *scontest.Bed, ipv4 bool) {
	b.T.Helper()
	addrs := []string{"10.78.0.2"}
	if !ipv4 {
		addrs = append(addrs, "[fd00:78::2]")
	}
	for _, addr := range addrs {
		scontest.Eventually(b.T, addr+" is there", func() error {
			return b.Do(lab.Device, func() error {
				c, err := net.DialTimeout("tcp", addr+":9", 200*time.Millisecond)
				if err == nil {
					c.Close()
				}
				if scontest.Refused(err) {
					return nil
				}
				return err
			})
		})
	}
}

// loseUplink removes up0, by which replies have left, while packets flow: they
// leave by eth0 instead.
func loseUplink(b *scontest.Bed, gateway, remove string) {
	b.T.Helper()
	b.Sh(lab.Edge, `
		sysctl -qw net.ipv4.conf.all.rp_filter=0
		sysctl -qw net.ipv4.conf.default.rp_filter=0
		sysctl -qw net.ipv4.conf.up0.rp_filter=0
		ip addr add 10.99.0.1/32 dev lo
		ip route add 10.77.0.1/32 dev eth0 src 10.99.0.1`)
	b.Sh(lab.Device, `
		ip route add 10.99.0.1/32 via `+gateway+` dev up0 metric 10 onlink
		ip route add 10.99.0.1/32 via 10.77.0.2 dev eth0 metric 20`)
	f := b.TrafficOver(b.Incoming("tcp", 1), b.Incoming("udp", 1))
	f.WaitExpress()
	wantOif := func(want string) {
		b.T.Helper()
		if oif := f.Datagrams.MustFlow().Oif; oif != want {
			b.T.Errorf("replies leave by %q, want %s", oif, want)
		}
	}
	wantOif("up0")
	b.Sh(lab.Device, remove)
	f.Proceed()
	f.WaitExpress()
	wantOif("eth0")
	f.Stream.Stop(b.T)
}

// A tunnel that takes the remote end of each packet from its route (external) loses
// none: packets without that route do not go by it.
func TestUplinkByRoute(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	near, remote := netip.MustParseAddr("10.78.0.1"), netip.MustParseAddr("10.78.0.2")
	macs := map[netip.Addr]string{near: "02:00:00:00:78:01", remote: "02:00:00:00:78:02"}
	need(b, "ip link add up0 type vxlan external dstport 4789", "ip link del up0")
	lay := func(node string, own, other, at, to netip.Addr) {
		b.Sh(node, fmt.Sprintf(`
			ip link add up0 address %s type vxlan external dstport 4789
			ip addr add %v/32 dev up0
			ip link set up0 up
			ip neigh add %v lladdr %s dev up0
			ip route add %[3]v encap ip id 7 src %[5]v dst %[6]v dev up0`, macs[own], own, other, macs[other], at, to))
	}
	lay(lab.Device, near, remote, lab.DeviceAddr, lab.EdgeAddr)
	lay(lab.Edge, remote, near, lab.EdgeAddr, lab.DeviceAddr)
	b.Sh(lab.Device, "iptables-nft -t nat -A POSTROUTING -o up0 -j MASQUERADE")
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(remote, 0))
	c.MustPing(20)
	b.Outgoing("udp", 1).GoExpress() // what was announced before is composed by now
	c.MustPing(100)
}
