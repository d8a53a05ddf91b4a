package express_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A table of nftables that goes with its owner, which is not announced, takes what it let
// pass along: here the mark without which another table drops.
func TestOwnedTable(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Device, `
		nft add table ip unmarked
		nft add chain ip unmarked forward { type filter hook forward priority 0 ; }
		nft add rule ip unmarked forward iifname docker0 meta mark != 7 drop`)
	own := func() (end func()) {
		return nstest.Owner(t, b.Node(lab.Device), `table ip marks { flags owner; chain p { type filter hook prerouting priority 0; iifname docker0 meta mark set 7; }; }`)
	}
	end := own()
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpress(func() error { _, err := c.Server.Write([]byte("x")); return err })
	end()
	stopsWithin(t, n, time.Now(), scontest.Heartbeat)

	own()
	n.Proceed(t, 100)
	c.WaitExpressOriginal()
}

// What an IPsec policy permits stops when its lifetime ends and another policy blocks it.
func TestPolicyExpires(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, `
		ip xfrm policy add src 172.17.0.0/16 dst 10.77.0.2 dir fwd priority 2 action block
		ip xfrm policy add src 172.17.0.2 dst 10.77.0.2 dir fwd priority 1 action allow limit time-hard 4`)
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	scontest.Eventually(t, "the policy expires", func() error {
		if out := b.Sh(lab.Device, "ip xfrm policy"); strings.Contains(out, "priority 1") {
			return errors.New(out)
		}
		return nil
	})
	stopsWithin(t, n, time.Now(), scontest.Heartbeat)
}

// A connection follows the routes of IPv6 that are left when one expires: here one that
// forbids.
func TestRouteExpires(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	c := b.Outgoing6("udp", 1).GoExpress()
	b.Sh(lab.Device, `
		ip route add blackhole fd00:77::/126
		ip route add fd00:77::2/128 dev eth0 expires 4`)
	since := time.Now()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	stopsWithin(t, n, since.Add(4*time.Second), scontest.Heartbeat)
}

// Of two default routes the better one expires: the other one's way is taken.
func TestDefaultRouteExpires(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add fd00:78::1/64 dev eth1 nodad
		ip link set eth1 up`)
	b.Sh(lab.Edge, `
		ip addr add fd00:78::2/64 dev eth1 nodad
		ip addr add fd00:99::1/128 dev lo nodad
		ip link set eth1 up`)
	b.Sh(lab.Device, `
		ip6tables-nft -t nat -I POSTROUTING -d fd00:99::1 -j ACCEPT
		ip6tables-nft -I DOCKER-USER -s fd00:99::1 -j ACCEPT
		ip -6 route replace default via fd00:78::2 metric 20
		ip -6 route add default via fd00:77::2 metric 10 expires 5`)
	since := time.Now()
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("[fd00:99::1]:7000")).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpressOriginal()
	if f := c.MustFlow(); f.Oif != "eth0" {
		t.Fatalf("express out of %s", f.Oif)
	}
	b.Sh(lab.Edge, "ip6tables-nft -I INPUT -i eth0 -p udp -j DROP") // that router loses them
	time.Sleep(time.Until(since.Add(5*time.Second + 200*time.Millisecond)))
	arrived := n.Arrived.Load()
	scontest.Eventually(t, "datagrams go by the other router", func() error {
		if n.Arrived.Load() == arrived {
			return errors.New("none arrives")
		}
		return nil
	})
	if late := time.Unix(0, n.Latest.Load()).Sub(since.Add(5 * time.Second)); late > scontest.Heartbeat {
		t.Errorf("they do after %v", late)
	}
	c.WaitExpressOriginal()
	if f := c.MustFlow(); f.Oif != "eth1" {
		t.Errorf("express out of %s", f.Oif)
	}
}

// stopsWithin waits until no packet arrives any more, and checks when the last one that did
// was sent, seen from a change.
func stopsWithin(t *testing.T, n *scontest.Numbers, since time.Time, bound time.Duration) {
	t.Helper()
	scontest.Eventually(t, "packets are dropped", func() error {
		before := n.Arrived.Load()
		sent := n.Sent.Load()
		time.Sleep(bound / 2)
		if now := n.Arrived.Load(); now != before || n.Sent.Load() == sent {
			return errors.New("packets arrive")
		}
		return nil
	})
	late := time.Unix(0, n.Latest.Load()).Sub(since)
	t.Logf("the last packet to pass was sent %v after the change", late)
	if late > bound {
		t.Errorf("longer than %v", bound)
	}
}
