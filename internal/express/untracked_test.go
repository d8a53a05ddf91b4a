package express_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/composer"
	"github.com/scon-project/scon/internal/express/nfhooks"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// noTracking keeps all packets from conntrack.
const noTracking = `
	nft add table inet raw
	nft add chain inet raw p { type filter hook prerouting priority -300 ; }
	nft add rule inet raw p notrack`

// routed is a lab in which containers reach edge under their own addresses.
func routed(t *testing.T) *scontest.Bed {
	t.Helper()
	b := scontest.New(t, scontest.Layout{Containers: 2, IPv6: true})
	b.Sh(lab.Edge, "ip route add 172.17.0.0/16 via 10.77.0.1\nip route add fd00:17::/64 via fd00:77::1")
	return b
}

// untracked is the same with rules that keep packets from conntrack.
func untracked(t *testing.T, setUp string) *scontest.Bed {
	t.Helper()
	b := routed(t)
	b.Sh(lab.Device, setUp+`
		iptables-nft -I DOCKER-USER -j ACCEPT
		ip6tables-nft -I DOCKER-USER -j ACCEPT
		iptables-nft -t nat -F POSTROUTING
		ip6tables-nft -t nat -F POSTROUTING`)
	b.Up()
	return b
}

// inbound connects edge to container 1 itself.
func inbound(b *scontest.Bed, proto string, to netip.Addr) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(to, 0))
}

// A connection that rules keep from conntrack goes express, until it ends or rules
// let conntrack see it.
func TestUntracked(t *testing.T) {
	t.Parallel()
	b := untracked(t, noTracking)
	for _, proto := range []string{"tcp", "udp"} {
		for name, connect := range map[string]func(b *scontest.Bed) *scontest.Connection{
			"out": func(b *scontest.Bed) *scontest.Connection { return b.Outgoing(proto, 1) },
			"in":  func(b *scontest.Bed) *scontest.Connection { return inbound(b, proto, lab.ContainerAddr(1)) },

			"out over IPv6": func(b *scontest.Bed) *scontest.Connection { return b.Outgoing6(proto, 1) },
			"in over IPv6":  func(b *scontest.Bed) *scontest.Connection { return inbound(b, proto, lab.ContainerAddr6(1)) },
		} {
			t.Run(proto+" "+name, func(t *testing.T) {
				c := connect(b.In(t)).GoExpress()
				if f := c.MustFlow(); !f.Untracked || f.Oif != lab.Uplink {
					t.Errorf("%+v", f)
				}
				c.ExchangeExpress(1 << 20)
				if proto == "tcp" {
					c.Close()
					c.WaitGone()
				}
			})
		}
	}
	c := b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, "nft flush chain inet raw p")
	scontest.Eventually(t, "conntrack sees it", func() error {
		if f, err := c.Flow(); err == nil && f.Untracked {
			return fmt.Errorf("still untracked: %+v", f)
		}
		return nil
	})
	c.GoExpress()
	if f := c.MustFlow(); f.Untracked {
		t.Errorf("%+v", f)
	}
}

// Where nothing has enabled conntrack, connections go express, until something does.
func TestUntrackedWithoutRules(t *testing.T) {
	t.Parallel()
	b := routed(t)
	b.Sh(lab.Device, "nft flush ruleset")
	b.Up()
	out, in := b.Outgoing6("tcp", 1).GoExpress(), inbound(b, "udp", lab.ContainerAddr6(1)).GoExpress()
	for _, c := range []*scontest.Connection{out, in} {
		if f := c.MustFlow(); !f.Untracked {
			t.Errorf("%+v", f)
		}
	}
	b.Sh(lab.Device, `
		nft add table ip6 t
		nft add chain ip6 t f { type filter hook forward priority 0 ; }
		nft add rule ip6 t f ct state invalid drop`)
	for _, c := range []*scontest.Connection{out, in} {
		c.GoExpress()
		if f := c.MustFlow(); f.Untracked {
			t.Errorf("%+v", f)
		}
	}
}

// A connection that conntrack does not know is composed only if it is certain that
// none of its packets is tracked: here one direction is, so they are INVALID to it.
func TestPartlyUntracked(t *testing.T) {
	t.Parallel()
	b := untracked(t, `
		nft add table inet raw
		nft add chain inet raw p { type filter hook prerouting priority -300 ; }
		nft add rule inet raw p iifname docker0 notrack
		sysctl -q -w net.netfilter.nf_conntrack_tcp_loose=0
		nft flush chain ip invalid forward
		nft flush chain ip6 invalid forward`)
	c := b.Outgoing("tcp", 1)
	for range 5 {
		c.MustPing(5)
		time.Sleep(300 * time.Millisecond)
	}
	if f, err := c.Flow(); err == nil {
		t.Errorf("composed: %+v", f)
	}
	if x, err := b.Daemon.Explain(lab.Port(1)); err != nil || !strings.Contains(fmt.Sprint(x.Findings), "conntrack does not know it") {
		t.Errorf("it was never announced: %+v, %v", x, err)
	}
}

// A rule about single packets, or one that drops, holds for an untracked connection
// as for others.
func TestUntrackedPolicy(t *testing.T) {
	t.Parallel()
	b := untracked(t, noTracking)
	outside := b.Outgoing("udp", 1).GoExpress()
	for _, r := range []rule{
		{
			name: "drop", add: "iptables-nft -I DOCKER-USER -s 172.17.0.2 -j DROP",
			remove: "iptables-nft -D DOCKER-USER -s 172.17.0.2 -j DROP",
		},
		{
			name: "drop of what is untracked", add: "iptables-nft -I DOCKER-USER -m conntrack --ctstate UNTRACKED -j DROP",
			remove: "iptables-nft -D DOCKER-USER 1", both: true,
		},
	} {
		t.Run(r.name, func(t *testing.T) { r.test(b.In(t), outside) })
	}
	b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -p udp -m limit --limit 1000/s -j ACCEPT")
	outside.WaitGone()
}

// The lease of an untracked connection is long where the kernel says which packets
// conntrack sees, and short where it does not.
func TestUntrackedLease(t *testing.T) {
	t.Parallel()
	b := untracked(t, noTracking)
	hooks, err := nfhooks.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer hooks.Close()
	bound, lease := composer.BoundByNeighbour, 15*time.Second
	if hooks.Blind != nil {
		bound, lease = composer.BoundByUntracked, time.Second
	}
	b.Sh(lab.Device, "sysctl -q -w net.ipv4.neigh.docker0.gc_stale_time=20")
	wantLease(t, b.Outgoing("tcp", 1), bound, lease)
}

// Without a rule that has conntrack track, the kernel neither tracks nor translates in the
// namespace, although the chains of address translation are still there: a restart of a
// container engine flushes its table before it fills it again. Nothing goes express with
// addresses that the kernel does not translate.
func TestLastTrackingRule(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	wire := b.OpenWire(lab.Edge)
	b.Sh(lab.Device, "iptables-nft -P FORWARD ACCEPT")
	for line := range strings.Lines(b.Sh(lab.Device, "nft list tables")) {
		if table := strings.TrimSpace(line); table != "table ip nat" {
			b.Sh(lab.Device, "nft flush "+table)
		}
	}
	c := b.Outgoing("udp", 1).GoExpress()
	saved := b.Sh(lab.Device, "nft list ruleset")
	b.Sh(lab.Device, "nft flush table ip nat")
	time.Sleep(20 * time.Millisecond) // a netlink message takes less
	translated := func(frame []byte) bool {
		const etherLen, source, udp = 14, 12, 17
		return len(frame) > etherLen+28 && frame[etherLen+9] == udp && netip.AddrFrom4([4]byte(frame[etherLen+source:][:4])) == lab.DeviceAddr
	}
	wire.Arrived(translated)
	before := b.ExpressPackets()
	for range 50 {
		if _, err := c.Client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if n := len(wire.Arrived(translated)); n > 0 || b.ExpressPackets() > before {
		t.Errorf("%d packets left with a translated address, %d were express", n, b.ExpressPackets()-before)
	}

	// With the rules connections go express again.
	file := filepath.Join(b.Dir, "saved")
	if err := os.WriteFile(file, []byte("flush ruleset\n"+saved), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Sh(lab.Device, "nft -f "+file)
	b.Outgoing("udp", 1).GoExpress()
}
