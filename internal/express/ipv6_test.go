package express_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// directions6 are the directions of connections over IPv6.
var directions6 = map[string]func(b *scontest.Bed, proto string, n int) *scontest.Connection{
	"masqueraded": (*scontest.Bed).Outgoing6,
	"published":   (*scontest.Bed).Incoming6,
	"routed": func(b *scontest.Bed, proto string, n int) *scontest.Connection {
		b.T.Helper()
		return b.Connect(proto, lab.Edge, lab.Container(n), netip.AddrPortFrom(lab.ContainerAddr6(n), 0))
	},
}

// newExpress6 is a lab with a daemon in which edge resolves the containers
// itself.
func newExpress6(t *testing.T, l scontest.Layout) *scontest.Bed {
	t.Helper()
	l.IPv6 = true
	b := scontest.NewExpress(t, l)
	b.Sh(lab.Edge, "ip route add fd00:17::/64 via fd00:77::1")
	b.Sh(lab.Device, "ip6tables-nft -I DOCKER-USER -s fd00:77::2 -d fd00:17::/64 -j ACCEPT")
	return b
}

// All bytes arrive as they were sent, nearly all of them express, with and
// without offloads.
func TestIPv6(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]scontest.Layout{
		"offloads": {Offload: true}, "no offloads": {}, "clsact": {Clsact: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newExpress6(t, layout)
			for name, connect := range directions6 {
				for _, proto := range []string{"tcp", "udp"} {
					t.Run(name+" "+proto, func(t *testing.T) {
						c := connect(b.In(t), proto, 1)
						c.ExchangeExpress(1 << 20)
						after := c.MustFlow()
						if after.Family != "ipv6" {
							t.Errorf("of family %q", after.Family)
						}
					})
				}
			}
			b.WantNoInvalid()
		})
	}
}

// A tunnel with checksums gives device packets with a sum over the whole
// packet, which has to be right after the express path.
func TestIPv6OfTunnel(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{IPv6: true})
	const tunnel = "ip link add vx0 type vxlan id 7 dstport 4789 local 10.77.0.%d remote 10.77.0.%d udpcsum\n" +
		"ip addr add fd00:78::%d/64 dev vx0 nodad\nip link set vx0 up"
	b.Sh(lab.Edge, fmt.Sprintf(tunnel, 2, 1, 2))
	b.Sh(lab.Device, fmt.Sprintf(tunnel, 1, 2, 1)+"\nip route replace default via fd00:78::2")
	b.Up()
	p := lab.Publications(1)[0]
	for _, proto := range []string{"tcp", "udp"} {
		for _, c := range []*scontest.Connection{
			b.Connect(proto, lab.Container(1), lab.Edge, netip.MustParseAddrPort("[fd00:78::2]:0")),
			b.ConnectTo(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(netip.MustParseAddr("fd00:78::1"), p.Device), p.Container, 0),
		} {
			c.GoExpress().Exchange(1 << 20)
			if f := c.MustFlow(); f.Oif != "vx0" {
				t.Errorf("goes out of %q", f.Oif)
			}
		}
	}
	b.WantNoInvalid()
	out := b.Sh(lab.Container(1), "cat /proc/net/snmp6")
	for _, counter := range []string{"Udp6InCsumErrors", "Udp6InErrors"} {
		for line := range strings.Lines(out) {
			if words := strings.Fields(line); words[0] == counter && words[1] != "0" {
				t.Errorf("%s is %s", counter, words[1])
			}
		}
	}
	if out := b.Sh(lab.Container(1), "nstat -asz TcpInCsumErrors"); !strings.Contains(out, " 0 ") {
		t.Errorf("TCP has found wrong checksums: %s", out)
	}
}

// A change of policy stops IPv6 packets as it does IPv4 packets.
func TestIPv6Policy(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	outside := b.Outgoing6("udp", 1).GoExpress()
	for _, r := range []rule{
		{
			name: "nft ip6",
			add: `nft add table ip6 stop
				nft add chain ip6 stop forward { type filter hook forward priority -5 ; }
				nft add rule ip6 stop forward ip6 saddr fd00:17::2 drop`,
			remove: "nft delete table ip6 stop",
		},
		{
			name:   "ip6tables-legacy, nowhere announced",
			add:    "env XTABLES_LOCKFILE=/dev/null ip6tables-legacy -I FORWARD -s fd00:17::2 -j DROP",
			remove: "env XTABLES_LOCKFILE=/dev/null ip6tables-legacy -D FORWARD -s fd00:17::2 -j DROP",
			silent: true,
		},
		{
			name:   "policy routing",
			add:    "ip -6 rule add from fd00:17::2 blackhole",
			remove: "ip -6 rule del from fd00:17::2 blackhole",
		},
		{
			name:   "route",
			add:    "ip route add blackhole fd00:77::2/128",
			remove: "ip route del blackhole fd00:77::2/128",
		},
		{
			name:   "forwarding off",
			add:    "sysctl -qw net.ipv6.conf.all.forwarding=0",
			remove: "sysctl -qw net.ipv6.conf.all.forwarding=1\nip route replace default via fd00:77::2",
			both:   true,
		},
		{
			name:   "IPsec policy",
			add:    "ip xfrm policy add src fd00:17::2 dst fd00:77::2 dir fwd action block",
			remove: "ip xfrm policy delete src fd00:17::2 dst fd00:77::2 dir fwd",
		},
		{
			name:    forced,
			prepare: "sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.docker0.force_forwarding=1 net.ipv6.conf.eth0.force_forwarding=1\nip route replace default via fd00:77::2",
			add:     "sysctl -qw net.ipv6.conf.docker0.force_forwarding=0",
			remove:  "sysctl -qw net.ipv6.conf.docker0.force_forwarding=1",
			tidy:    "sysctl -qw net.ipv6.conf.all.forwarding=1\nip route replace default via fd00:77::2",
			silent:  true,
		},
	} {
		if r.name == forced && !hasSetting("net.ipv6.conf.all.force_forwarding") {
			t.Logf("%s: this kernel has no such setting (Linux 6.17)", r.name)
			continue
		}
		t.Run(r.name, func(t *testing.T) { r.test(b.In(t), outside) })
	}
}

// forced is the change of a setting that forwards though all devices together do not.
const forced = "forced forwarding off"

// An IPv6 rule that judges single packets keeps regular the connections that
// it matches.
func TestIPv6PerPacketRules(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	v4 := b.Outgoing("udp", 1).GoExpress()
	for name, r := range map[string]struct{ add, remove, names string }{
		"nft": {
			`nft add table ip6 judge
			nft add chain ip6 judge forward { type filter hook forward priority -5 ; }
			nft add rule ip6 judge forward udp dport %d limit rate 1000000/second accept`,
			"nft delete table ip6 judge", "ip6 judge forward handle 2 (limit)",
		},
		"ip6tables-legacy": {
			"ip6tables-legacy -w -t mangle -A PREROUTING -p udp --dport %d -m hl --hl-lt 3 -j DROP",
			"ip6tables-legacy -w -t mangle -F", "ip6tables-legacy mangle PREROUTING handle 1 (hl)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			judged, other := b.Outgoing6("udp", 1).GoExpress(), b.Outgoing6("udp", 1).GoExpress()
			b.Sh(lab.Device, strings.ReplaceAll(r.add, "%d", fmt.Sprint(scontest.PortOf(judged.Server.LocalAddr()))))
			scontest.Eventually(t, "the Conentry goes", func() error {
				judged.MustPing(1)
				if _, err := judged.Flow(); err == nil {
					return errors.New("it is there")
				}
				return nil
			})
			wantExplained(judged, r.names)
			other.GoExpress()
			v4.In(b).GoExpress()
			b.Sh(lab.Device, r.remove)
			judged.GoExpress()
		})
	}
}

// The MAC address of a neighbour changes, a connection leaves conntrack, the
// daemon dies: connections over IPv6 continue.
func TestIPv6Changes(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	f := b.TrafficOver(b.Incoming6("tcp", 1), b.Outgoing6("udp", 1))
	f.WaitExpress()

	const mac = "02:00:00:00:00:16"
	b.Sh(lab.Edge, "ip link set eth0 address "+mac)
	b.Sh(lab.Device, "ip neigh replace fd00:77::2 lladdr "+mac+" nud reachable dev eth0")
	f.Proceed()
	f.WaitExpress()
	if to := f.Datagrams.MustFlow().NextHop; to != mac {
		t.Errorf("express to %s, the neighbour is %s", to, mac)
	}

	other := b.Outgoing6("udp", 1).GoExpress()
	b.Sh(lab.Device, fmt.Sprintf("conntrack -D -f ipv6 -p udp --sport %d", other.Port()))
	other.WaitGone()
	other.GoExpress()

	b.Daemon.Kill()
	time.Sleep(scontest.Heartbeat)
	dead := b.ExpressPackets()
	f.Stream.Proceed(t, 256<<10)
	if now := b.ExpressPackets(); now != dead {
		t.Errorf("%d packets went express without a daemon", now-dead)
	}
	b.Up()
	if _, err := f.Stream.C.Flow(); err != nil {
		t.Errorf("not taken over: %v", err)
	}
	f.WaitExpress()
	f.Stream.Stop(t)
	b.WantNoInvalid()
}

// Packets longer than the outgoing MTU are answered by Packet Too Big, those
// with a hop limit of 0 by Time Exceeded.
func TestIPv6Errors(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	c := b.Outgoing6("udp", 1).GoExpress()
	scontest.SetOption(t, c.Client, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	scontest.SetOption(t, c.Client, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1)
	if _, err := c.Client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := scontest.ReadDatagram(c.Client); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("reading ended with %v", err)
	}
	b.WantReason("ttl_expires", 0)
	scontest.SetOption(t, c.Client, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 2)
	c.GoExpress()

	if err := scontest.Pass(c.Client, c.Server, 1400); err != nil {
		t.Fatal(err)
	}
	b.Sh(lab.Device, "ip link set eth0 mtu 1300")
	c.GoExpress()
	scontest.SetOption(t, c.Client, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	scontest.Eventually(t, "the path's MTU is known", func() error {
		_, err := c.Client.Write(make([]byte, 1400))
		if mtu := scontest.Option(t, c.Client, unix.IPPROTO_IPV6, unix.IPV6_MTU); mtu != 1300 {
			return fmt.Errorf("it is %d, and sending ended with %v", mtu, err)
		}
		return nil
	})
	scontest.Option(t, c.Client, unix.SOL_SOCKET, unix.SO_ERROR) // that was it
	if err := scontest.Pass(c.Client, c.Server, 1200); err != nil {
		t.Fatal(err)
	}
	c.GoExpress()
}

// Fragments and packets with extension headers arrive, and go regular.
func TestIPv6ExtensionHeaders(t *testing.T) {
	t.Parallel()
	b := newExpress6(t, scontest.Layout{})
	for name, connect := range directions6 {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			c := connect(b, "udp", 1).GoExpress()
			container, _ := b.Container(1)
			for _, e := range c.Ends() {
				for range 10 {
					if err := scontest.Pass(e[0], e[1], 4000); err != nil {
						t.Fatal(err)
					}
				}
			}
			b.WantReason("fragment", container.Reasons["fragment"]+19)

			const padding = "\x00\x00\x01\x04\x00\x00\x00\x00" // of destination options
			scontest.Socket(t, c.Client, func(fd int) error {
				return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, padding)
			})
			for range 10 {
				if err := scontest.Pass(c.Client, c.Server, 64); err != nil {
					t.Fatal(err)
				}
			}
			b.WantReason("ip_options", container.Reasons["ip_options"]+9)
			scontest.Socket(t, c.Client, func(fd int) error {
				return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, "")
			})
			c.GoExpress()
		})
	}
	b.WantNoInvalid()
}
