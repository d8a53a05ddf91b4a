package express_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Connections without a Conentry are explained from conntrack.
func TestExplainTracked(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = 1000 }})
	c := b.Outgoing("udp", 1)
	host := b.Connect("udp", lab.Container(1), lab.Device, netip.AddrPortFrom(lab.BridgeAddr, 0))
	for subject, want := range map[string]string{
		fmt.Sprintf("udp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr()):       "has no Conentry",
		fmt.Sprintf("tcp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr()):       "conntrack knows no such connection",
		fmt.Sprintf("udp:%s->%s", host.Client.LocalAddr(), host.Client.RemoteAddr()): "one end is this host itself",
		lab.EdgeAddr.String(): "has no Conentry",
		"192.0.2.1":           "conntrack knows no such connection",
	} {
		x, err := b.Daemon.Explain(subject)
		if err != nil {
			t.Fatal(err)
		}
		if x.Known == strings.Contains(want, "no such connection") {
			t.Errorf("%s: known is %v, want %q", subject, x.Known, want)
		}
		if x.Express || len(x.Flows) > 0 || len(x.Findings) != 1 || !strings.Contains(x.Findings[0].What, want) {
			t.Errorf("%s is explained by %+v, want %q", subject, x, want)
		}
	}
}

// A container without connections has none: it does not go regular. A name that is nearly
// one's is suggested.
func TestExplainNone(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	x, err := b.Daemon.Explain(lab.Port(1))
	if err != nil {
		t.Fatal(err)
	}
	if x.Known || x.Express || !strings.Contains(fmt.Sprint(x.Findings), "no connection of it is known") {
		t.Errorf("%+v", x)
	}
	b.Outgoing("udp", 1).MustPing(20)
	scontest.Eventually(t, "its connection is known", func() error {
		if x, err = b.Daemon.Explain(lab.Port(1)); err != nil {
			t.Fatal(err)
		}
		if !x.Known || strings.Contains(fmt.Sprint(x.Findings), "no connection of it is known") {
			return fmt.Errorf("%+v", x)
		}
		return nil
	})
	if _, err := b.Daemon.Explain("no-such-container"); err == nil || !strings.Contains(err.Error(), "running and hooked are ") {
		t.Errorf("%v", err)
	}
}

// Explaining more connections than the limit does not take forever.
func TestExplainMany(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.Admit = 1000 }})
	const many = 120
	for range many {
		b.Outgoing("udp", 1)
	}
	x, err := b.Daemon.Explain(lab.ContainerAddr(1).String())
	if err != nil {
		t.Fatal(err)
	}
	n := len(x.Findings)
	if n < 2 || n >= many || !strings.Contains(x.Findings[n-1].What, "more") {
		t.Errorf("%d findings for %d connections, the last of them %+v", n, many, x.Findings[n-1])
	}
}

// A connection that leaves by a device which is not hooked is explained by
// that device and the reason.
func TestExplainLeftOut(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up
		tc qdisc add dev eth1 clsact
		tc filter add dev eth1 ingress pref 7 protocol ip u32 match ip protocol 1 0xff classid 1:1`)
	b.Sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up`)
	b.Up()
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.78.0.2:0"))
	subject := fmt.Sprintf("udp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr())
	scontest.Eventually(t, "it is explained", func() error {
		c.MustPing(5)
		x, err := b.Daemon.Explain(subject)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range x.Findings {
			if strings.Contains(f.What, "uses eth1, which is not hooked") && strings.Contains(f.Why, "u32 filter, pref 7") {
				return nil
			}
		}
		return fmt.Errorf("%+v", x)
	})
}

// What a tunnel sends where its route says, by a device where express packets do not get the
// tunnel's headers, is explained by that device.
func TestExplainTunnelBelow(t *testing.T) {
	t.Parallel()
	for name, lay := range map[string]func(b *scontest.Bed){
		"not hooked": func(b *scontest.Bed) {
			b.Sh(lab.Device, `
				ip link add below type veth peer name below netns `+b.Node(lab.Edge)+`
				tc qdisc add dev below clsact
				tc filter add dev below ingress pref 7 protocol ip u32 match ip protocol 1 0xff classid 1:1`)
		},
		"without MAC addresses": func(b *scontest.Bed) {
			need(b, "ip link add below type gre local 10.77.0.1 remote 10.77.0.2", "ip link del below")
			b.Sh(lab.Device, "ip link add below type gre local 10.77.0.1 remote 10.77.0.2")
			b.Sh(lab.Edge, "ip link add below type gre local 10.77.0.2 remote 10.77.0.1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.New(t, scontest.Layout{})
			layByRoute(b)
			lay(b)
			b.Sh(lab.Device, `
				ip addr add 10.79.0.1/24 dev below
				ip link set below up`)
			b.Sh(lab.Edge, `
				ip addr add 10.79.0.2/24 dev below
				ip link set below up
				ip link add up1 type ipip local 10.79.0.2
				ip link set up1 up
				sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.up1.rp_filter=0`)
			b.Up()
			c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(lab.SecondEdge, 0))
			subject := fmt.Sprintf("udp:%s->%s", c.Client.LocalAddr(), c.Client.RemoteAddr())
			explained := func() (text string) {
				c.MustPing(5)
				x, err := b.Daemon.Explain(subject)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(x.Findings)
			}
			const want = "the tunnel sends them by below,"
			skipsSecond(c.GoExpress())
			if text := explained(); strings.Contains(text, want) {
				t.Errorf("by eth0: %s", text)
			}
			b.Sh(lab.Device, "ip route replace 10.78.0.2/32 via 10.79.0.2 dev up0 onlink")
			scontest.Eventually(t, "the device is named", func() error {
				if text := explained(); !strings.Contains(text, "packets that leave by up0 go regular") || !strings.Contains(text, want) {
					return fmt.Errorf("%s", text)
				}
				return nil
			})
		})
	}
}

// After a container has got another network with the better default route, what it sends of
// an established connection enters by that one, and goes regular: explain says so.
func TestExplainOtherWay(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	container := filepath.Base(b.Node(lab.Container(1)))
	b.Sh(lab.Device, `ip link add br9 type bridge
		ip addr add 172.30.0.1/24 dev br9
		ip link set br9 up
		ip link add v9 master br9 type veth peer name eth9 netns `+container+`
		ip link set v9 up
		iptables-nft -I FORWARD -i br9 -j ACCEPT`)
	b.Sh(lab.Container(1), `ip addr add 172.30.0.2/24 dev eth9
		ip link set eth9 up
		ip route replace default via 172.30.0.1`)
	scontest.Eventually(t, "the other way is named", func() error {
		c.MustPing(1)
		x, err := b.Daemon.Explain(fmt.Sprintf("udp:172.17.0.2:%d", c.Port()))
		text := fmt.Sprint(x.Findings)
		if err == nil && !(strings.Contains(text, "enter at v9, where they go regular") && strings.Contains(text, "began by veth1")) {
			err = fmt.Errorf("explained as %s", text)
		}
		return err
	})
}
