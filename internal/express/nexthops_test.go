package express_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Addresses of edge that are behind several next hops.
var (
	behind  = netip.MustParseAddr("10.99.0.1")
	behind6 = netip.MustParseAddr("fd00:99::1")
)

// secondLink connects device and edge a second time, by eth1. What edge has behind both is
// not translated, and answers by eth0.
func secondLink(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip addr add fd00:78::1/64 dev eth1 nodad
		ip link set eth1 up
		iptables-nft -t nat -I POSTROUTING -d 10.99.0.1 -j ACCEPT
		iptables-nft -I DOCKER-USER -s 10.99.0.1 -j ACCEPT
		ip6tables-nft -t nat -I POSTROUTING -d fd00:99::1 -j ACCEPT
		ip6tables-nft -I DOCKER-USER -s fd00:99::1 -j ACCEPT
		sysctl -qw net.ipv4.fib_multipath_hash_policy=1`)
	b.Sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev eth1
		ip addr add fd00:78::2/64 dev eth1 nodad
		ip link set eth1 up
		ip addr add 10.99.0.1/32 dev lo
		ip addr add fd00:99::1/128 dev lo nodad
		ip route add 172.17.0.0/16 via 10.77.0.1
		ip -6 route add fd00:17::/64 via fd00:77::1
		sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth1.rp_filter=0`)
}

// by opens connections to an address behind several next hops until one leaves by a device.
func by(b *scontest.Bed, proto string, to netip.Addr, dev string) *scontest.Connection {
	b.T.Helper()
	for range 100 {
		c := b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(to, 0)).GoExpress()
		if c.MustFlow().Oif == dev {
			return c
		}
		c.Close()
	}
	b.T.Fatalf("no connection leaves by %s", dev)
	return nil
}

// A TCP connection leaves a next hop that loses its packets, as without SCON: its socket
// takes another hash when segments are not acknowledged.
func TestDeadNextHop(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		routes string
		to     netip.Addr
	}{
		"IPv4":    {"ip route add 10.99.0.1 nexthop via 10.77.0.2 dev eth0 weight 7 nexthop via 10.78.0.2 dev eth1", behind},
		"IPv6":    {"ip -6 route add fd00:99::1 nexthop via fd00:77::2 dev eth0 weight 7 nexthop via fd00:78::2 dev eth1", behind6},
		"objects": {"ip nexthop add id 1 via 10.77.0.2 dev eth0\nip nexthop add id 2 via 10.78.0.2 dev eth1\nip nexthop add id 3 group 1,7/2\nip route add 10.99.0.1 nhid 3", behind},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.New(t, scontest.Layout{IPv6: true})
			secondLink(b)
			b.Sh(lab.Device, tc.routes)
			b.Up()
			c := by(b, "tcp", tc.to, "eth1")
			b.Sh(lab.Edge, "iptables-nft -I INPUT -i eth1 -p tcp -j DROP\nip6tables-nft -I INPUT -i eth1 -p tcp -j DROP")
			since := time.Now()
			c.MustPing(1)
			t.Logf("after %v", time.Since(since))
			c.GoExpress()
			if f := c.MustFlow(); f.Oif != "eth0" {
				t.Errorf("express out of %s", f.Oif)
			}
			b.WantNoInvalid()
		})
	}
}

// A route that names a next-hop object alone makes its device an uplink.
func TestNextHopObject(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		sysctl -qw net.ipv4.nexthop_compat_mode=0
		ip nexthop add id 7 via 10.77.0.2 dev eth0
		ip addr replace 10.77.0.1/32 dev eth0
		ip addr del 10.77.0.1/24 dev eth0
		ip nexthop replace id 7 via 10.77.0.2 dev eth0 onlink
		ip route replace default nhid 7`)
	b.Up()
	c := b.Outgoing("udp", 1).GoExpress()
	if f := c.MustFlow(); f.Oif != "eth0" {
		t.Errorf("express out of %q", f.Oif)
	}
}

// The kernel does not move a busy connection's packets to another next hop of a resilient
// group: enough of them are regular. It does where they were not.
func TestResilientGroup(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{IPv6: true})
	secondLink(b)
	const idle = 3 * time.Second
	b.Sh(lab.Device, fmt.Sprintf(`
		ip nexthop add id 1 via 10.77.0.2 dev eth0
		ip nexthop add id 2 via 10.78.0.2 dev eth1
		ip nexthop add id 3 group 1 type resilient buckets 8 idle_timer %d
		ip route add 10.99.0.1 nhid 3`, idle/time.Second))
	b.Up()
	var all []*scontest.Connection
	// So many that one of them is certainly in a bucket that is moved: half of all are.
	for range 24 {
		all = append(all, b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(behind, 0)).GoExpress())
	}
	b.Sh(lab.Device, "ip nexthop replace id 3 group 1/2 type resilient")
	for _, c := range all {
		wantLease(t, c, composer.BoundByNexthop, idle/3)
	}
	before := make(map[*scontest.Connection]string)
	for _, c := range all {
		before[c] = c.GoExpress().MustFlow().Oif
	}
	for end := time.Now().Add(3 * idle); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, c := range all {
			c.MustPing(1)
		}
	}
	for _, c := range all {
		if f := c.GoExpress().MustFlow(); f.Oif != before[c] {
			t.Errorf("port %d went out of %s, goes out of %s", c.Port(), before[c], f.Oif)
		}
	}
	// One that is silent is moved, and its decision withdrawn.
	time.Sleep(2 * idle)
	scontest.Eventually(t, "idle packets are moved", func() error {
		for _, c := range all {
			if c.GoExpress().MustFlow().Oif == "eth1" {
				return nil
			}
		}
		return errors.New("all go out of eth0")
	})
}
