package daemon_test

import (
	"cmp"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/scontest"
)

// uplink is a kind of device that a route may lead out of: a second network
// between edge and device is over it.
//
//	edge up0 10.78.0.2, fd00:78::2 ==== 10.78.0.1, fd00:78::1 up0 device
type uplink struct {
	lay    func(b *scontest.Bed) // makes up0 in both
	change func(b *scontest.Bed) // lets packets take another way below up0; nil if there is none
	remove string                // removes it, "ip link del up0" if it is ""
	clsact bool                  // hook by clsact, whatever the kernel has
	named  bool                  // the daemon is told: a wire of the lab is like a container's
}

var uplinks = map[string]uplink{
	"vlan":                {lay: both("ip link add link eth0 name up0 type vlan id 5")},
	"macvlan":             {lay: both("ip link add link eth0 name up0 type macvlan mode bridge")},
	"bond, active-backup": {lay: backedUp("none"), change: failOver},
	"bond, active-backup, MAC address of the port": {lay: backedUp("active"), change: failOver},
	"bond, 802.3ad":      {lay: bonded("802.3ad lacp_rate fast"), change: loseFirst},
	"bond, balance-rr":   {lay: bonded("balance-rr"), change: loseFirst},
	"bond, balance-xor":  {lay: bonded("balance-xor xmit_hash_policy layer3+4"), change: loseFirst},
	"bridge":             {lay: bridged, change: changePort, named: true},
	"tun":                {lay: tunnelled(false)},
	"tun, clsact":        {lay: tunnelled(true), clsact: true},
	"tun with offloads":  {lay: tunnelled(true)},
	"wireguard":          {lay: wireguard, change: moveWireguard},
	"vlan of a bond":     {lay: vlanOfBond, change: failOver},
	"bridge with a bond": {lay: bridgedBond, change: failOver},
}

// both does the same in device and edge.
func both(commands string) func(*scontest.Bed) {
	return func(b *scontest.Bed) {
		b.T.Helper()
		need(b, commands, "ip link del up0")
		b.Sh(lab.Device, commands)
		b.Sh(lab.Edge, commands)
	}
}

// layPorts makes two wires between device and edge, p1 and p2, both down.
func layPorts(b *scontest.Bed) {
	b.T.Helper()
	for _, p := range []string{"p1", "p2"} {
		b.Sh(lab.Device, fmt.Sprintf("ip link add %s type veth peer name %[1]s netns %s", p, b.Node(lab.Edge)))
	}
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

// bridged has the host's address on a bridge whose port is the wire.
func bridged(b *scontest.Bed) {
	b.T.Helper()
	layPorts(b)
	bridgePorts(b, lab.Device, "up0", "p1")
	bridgePorts(b, lab.Edge, "up0", "p1")
}

// changePort takes the wire out of both bridges, and puts the other one in.
func changePort(b *scontest.Bed) {
	b.T.Helper()
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

// failOver makes the other port of device's bond the active one, which sends
// everything from then on.
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

// wireguard has a tunnel of WireGuard's over eth0.
func wireguard(b *scontest.Bed) {
	b.T.Helper()
	if _, err := exec.LookPath("wg"); err != nil {
		b.T.Skip("there is no wg: Debian's package wireguard-tools has it")
	}
	need(b, "ip link add up0 type wireguard", "ip link del up0")
	keys := make(map[string]*ecdh.PrivateKey)
	for _, node := range []string{lab.Device, lab.Edge} {
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			b.T.Fatal(err)
		}
		keys[node] = key
	}
	for _, end := range []struct{ here, there string }{{lab.Device, lab.Edge}, {lab.Edge, lab.Device}} {
		file := filepath.Join(b.Dir, end.here)
		if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(keys[end.here].Bytes())), 0o600); err != nil {
			b.T.Fatal(err)
		}
		peer := base64.StdEncoding.EncodeToString(keys[end.there].PublicKey().Bytes())
		b.Sh(end.here, "ip link add up0 type wireguard\n"+
			fmt.Sprintf("wg set up0 listen-port 51820 private-key %s peer %s endpoint %s:51820 allowed-ips 0.0.0.0/0,::/0", file, peer, b.Addr(end.there)))
	}
}

// moveWireguard gives edge's end another port, as if it roamed.
func moveWireguard(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Edge, "wg set up0 listen-port 51821")
}

// overSecond connects container 1 with edge by the second network, both ways.
func overSecond(b *scontest.Bed, proto string) map[string]*scontest.Connection {
	b.T.Helper()
	p := lab.Publications(1)[0]
	all := make(map[string]*scontest.Connection)
	for family, addrs := range map[string][2]string{"IPv4": {"10.78.0.1", "10.78.0.2"}, "IPv6": {"fd00:78::1", "fd00:78::2"}} {
		device, edge := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
		all[family+" outgoing "+proto] = b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(edge, 0))
		all[family+" incoming "+proto] = b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(device, p.Device), p.Container, 0)
	}
	return all
}

// Whatever device a route leads out of, packets of both families go express by
// it, both ways, and all arrives. Where the way below it changes, they take the
// new one; where the device goes, what has another route takes that.
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
	b := scontest.New(t, scontest.Layout{IPv6: true, Offload: true, Clsact: u.clsact, Config: func(c *config.Config) {
		if u.named {
			c.Bridges, c.Uplinks = config.Devices{lab.Bridge}, config.Devices{lab.Uplink, "up0"}
		}
	}})
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, "ip link set eth0 mtu 1600") // room for headers
	}
	u.lay(b)
	for node, n := range map[string]string{lab.Device: "1", lab.Edge: "2"} {
		b.Sh(node, `
			ip link set up0 mtu 1500
			ip addr add 10.78.0.`+n+`/24 dev up0
			ip addr add fd00:78::`+n+`/64 dev up0 nodad
			ip link set up0 up`)
	}
	b.Up()
	awaitSecond(b)
	for _, proto := range []string{"tcp", "udp"} {
		for name, c := range overSecond(b, proto) {
			c.GoExpress()
			c.Exchange(256 << 10)
			c.GoExpress() // whatever the exchange was like
			if f := c.MustFlow(); f.Oif != "up0" {
				t.Errorf("%s goes out of %q", name, f.Oif)
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
	loseUplink(b, cmp.Or(u.remove, "ip link del up0"))
	b.WantNoInvalid()
}

// awaitSecond waits until the second network works.
func awaitSecond(b *scontest.Bed) {
	b.T.Helper()
	for _, addr := range []string{"10.78.0.2", "[fd00:78::2]"} {
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

// loseUplink removes up0, by which replies leave until then, while packets
// flow: they leave by eth0 instead.
func loseUplink(b *scontest.Bed, remove string) {
	b.T.Helper()
	b.Sh(lab.Edge, `
		sysctl -qw net.ipv4.conf.all.rp_filter=0
		sysctl -qw net.ipv4.conf.default.rp_filter=0
		sysctl -qw net.ipv4.conf.up0.rp_filter=0
		ip addr add 10.99.0.1/32 dev lo
		ip route add 10.77.0.1/32 dev eth0 src 10.99.0.1`)
	b.Sh(lab.Device, `
		ip route add 10.99.0.1/32 via 10.78.0.2 dev up0 metric 10 onlink
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
