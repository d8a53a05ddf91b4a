package express_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// between is a path from container 1 to container 2.
type between struct {
	path    string
	setUp   string // in device
	connect func(b *scontest.Bed, proto string) *scontest.Connection
	ipv6    bool
	// untracked means that conntrack does not see it.
	untracked bool
}

// Device's bridge does not show its packets to Netfilter.
const bridgeAlone = `
	sysctl -q -w net.bridge.bridge-nf-call-iptables=0
	sysctl -q -w net.bridge.bridge-nf-call-ip6tables=0`

// Device forwards containers to each other's published ports, and replies
// return to it.
const hairpin = `
	iptables-nft -t nat -I PREROUTING -i docker0 -d 10.77.0.1 -p tcp --dport 8002 -j DNAT --to 172.17.0.3:80
	iptables-nft -t nat -I PREROUTING -i docker0 -d 10.77.0.1 -p udp --dport 8002 -j DNAT --to 172.17.0.3:80
	iptables-nft -t nat -I POSTROUTING -s 172.17.0.0/16 -o docker0 -j MASQUERADE`

// secondBridge moves container 2 to a bridge of its own.
func secondBridge(b *scontest.Bed) {
	b.T.Helper()
	b.Sh(lab.Device, `
		ip link add docker1 type bridge
		ip addr add 172.18.0.1/16 dev docker1
		ip link set docker1 up
		ip link set veth2 master docker1
		iptables-nft -I DOCKER-USER -i docker0 -o docker1 -j ACCEPT
		iptables-nft -I DOCKER-USER -i docker1 -o docker0 -j ACCEPT`)
	b.Sh(lab.Container(2), `
		ip addr flush dev eth0
		ip addr add 172.18.0.2/16 dev eth0
		ip route add default via 172.18.0.1`)
}

func direct(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.ContainerAddr(2), 700)) // below every port that a client takes
}

func direct6(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.ContainerAddr6(2), 700))
}

func byPublishedPort(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.ConnectTo(proto, lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.DeviceAddr, 8002), 80, 0)
}

func bySecondBridge(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(1), lab.Container(2), netip.MustParseAddrPort("172.18.0.2:0"))
}

var betweens = map[string]between{
	"bridged and tracked": {path: api.PathBridged, connect: direct},
	"bridged":             {path: api.PathBridged, setUp: bridgeAlone, connect: direct, untracked: true},
	"bridged over IPv6":   {path: api.PathBridged, setUp: bridgeAlone, connect: direct6, untracked: true, ipv6: true},
	"tracked over IPv6":   {path: api.PathBridged, connect: direct6, ipv6: true},
	"hairpin":             {path: api.PathHairpin, setUp: hairpin + bridgeAlone, connect: byPublishedPort},
	"hairpin, bridged":    {path: api.PathHairpin, setUp: hairpin, connect: byPublishedPort},
	"routed":              {path: api.PathRouted, connect: bySecondBridge},
}

// newBetween is a bed where container 1 reaches container 2 by that path.
func newBetween(t *testing.T, w between, l scontest.Layout) *scontest.Bed {
	t.Helper()
	l.Containers, l.IPv6 = 2, w.ipv6
	b := scontest.New(t, l)
	if w.setUp != "" {
		b.Sh(lab.Device, w.setUp)
	}
	if w.path == api.PathRouted {
		secondBridge(b)
	}
	b.Up()
	b.WaitHooked(1)
	b.WaitHooked(2)
	settled(b, 2)
	return b
}

// All bytes arrive as they were sent, nearly all of them express, in both
// directions.
func TestBetweenContainers(t *testing.T) {
	t.Parallel()
	for name, w := range betweens {
		for _, offload := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, offload %v", name, offload), func(t *testing.T) {
				t.Parallel()
				b := newBetween(t, w, scontest.Layout{Offload: offload})
				for _, proto := range []string{"tcp", "udp"} {
					c := w.connect(b, proto)
					c.ExchangeExpress(1 << 20)
					after := c.MustFlow()
					if after.Path != w.path || after.Peer == "" || after.Peer == after.Container || after.Oif != lab.Port(2) {
						t.Errorf("%s: %+v", proto, after)
					}
				}
				b.WantNoInvalid()
			})
		}
	}
}

// Packets do not overtake each other while they switch paths.
func TestOrderBetweenContainers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bridged", "bridged and tracked", "routed"} {
		t.Run(name, func(t *testing.T) {
			w := betweens[name]
			b := newBetween(t, w, scontest.Layout{Offload: true, Config: func(c *config.Config) { c.LeasePackets = 50 }})
			b.Sh(lab.Container(2), "ethtool -K eth0 tx-udp-segmentation off")
			keepOrder(t, b, w.connect(b, "udp"), scontest.SendNumbers)
		})
	}
}

// stops waits until nothing of a connection arrives any more, at most for the
// time that the change may take to apply.
func stops(t *testing.T, c *scontest.Connection, bound time.Duration, change func()) {
	t.Helper()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	n.Proceed(t, 50)
	change()
	time.Sleep(bound + 100*time.Millisecond)
	before := n.Arrived.Load()
	time.Sleep(200 * time.Millisecond)
	if more := n.Arrived.Load() - before; more != 0 {
		t.Errorf("%d packets arrive", more)
	}
	_ = n.Stop()
}

// What the bridge or its rules no longer forward does not go express.
func TestPolicyBetweenContainers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, change, undo string
		bound              time.Duration
	}{
		"a rule in the bridge": {"bridged", "nft add table bridge f\nnft add chain bridge f f { type filter hook forward priority 0 ; }\n" +
			"nft add rule bridge f f ip protocol udp drop", "nft delete table bridge f", 0},
		"a rule of IP in the bridge": {"bridged and tracked", "iptables-nft -I DOCKER-USER -p udp -j DROP", "iptables-nft -D DOCKER-USER 1", 0},
		"a rule between bridges":     {"routed", "iptables-nft -I DOCKER-USER -p udp -j DROP", "iptables-nft -D DOCKER-USER 1", 0},
		"a rule of a published port": {"hairpin", "iptables-nft -I DOCKER-USER -p udp -j DROP", "iptables-nft -D DOCKER-USER 1", 0},
		"isolated ports": {"bridged", "ip link set veth1 type bridge_slave isolated on\nip link set veth2 type bridge_slave isolated on",
			"ip link set veth1 type bridge_slave isolated off", 0},
		"another MAC address": {"bridged", "bridge fdb replace 02:42:ac:11:00:03 dev veth1 master static", "bridge fdb del 02:42:ac:11:00:03 dev veth1 master", 0},
		"a route":             {"routed", "ip route replace blackhole 172.18.0.2", "ip route del blackhole 172.18.0.2", 0},
		"what nobody announces": {"bridged", "sysctl -q -w net.bridge.bridge-nf-call-iptables=1", "iptables-nft -D DOCKER-USER 1",
			scontest.Lease},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t, betweens[tc.path], scontest.Layout{})
			if tc.bound != 0 {
				b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -i docker0 -o docker0 -p udp -j DROP")
			}
			c := betweens[tc.path].connect(b, "udp").GoExpress()
			stops(t, c, tc.bound, func() { b.Sh(lab.Device, tc.change) })
			b.Sh(lab.Device, tc.undo)
			c.GoExpress()
		})
	}
}

// Rules that judge single packets keep regular only the connections that may
// reach them, within a bridge or between two.
func TestRulesBetweenContainers(t *testing.T) {
	t.Parallel()
	const inBridge = "nft add table bridge f\nnft add chain bridge f f { type filter hook forward priority 0 ; }\n"
	for name, tc := range map[string]struct {
		path, rule string
		matches    bool
	}{
		"of the port":               {"bridged", inBridge + "nft add rule bridge f f iifname veth2 limit rate 100000/second accept", true},
		"of another port":           {"bridged", inBridge + "nft add rule bridge f f iifname veth9 limit rate 100000/second accept", false},
		"of the outgoing direction": {"routed", "iptables-nft -I DOCKER-USER -o docker1 -m limit --limit 10000/s -j RETURN", true},
		"of another bridge":         {"routed", "iptables-nft -I DOCKER-USER -o docker9 -m limit --limit 10000/s -j RETURN", false},
		"of the uplink":             {"hairpin", "iptables-nft -I DOCKER-USER -o eth0 -m limit --limit 10000/s -j RETURN", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBetween(t, betweens[tc.path], scontest.Layout{})
			c := betweens[tc.path].connect(b, "udp").GoExpress()
			b.Sh(lab.Device, tc.rule)
			if !tc.matches {
				c.GoExpress()
				return
			}
			c.WaitGone()
			c.MustPing(20)
			if f, err := c.Flow(); err == nil {
				t.Errorf("composed again: %+v", f)
			}
			x, err := b.Daemon.Explain(lab.Port(1))
			if err != nil || !strings.Contains(fmt.Sprint(x.Findings), "limit") {
				t.Errorf("explained as %+v, %v", x, err)
			}
		})
	}
}

// A Conentry of two containers behaves like others, and survives a killed
// daemon.
func TestLifeBetweenContainers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bridged", "bridged and tracked", "hairpin"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := betweens[name]
			b := newBetween(t, w, scontest.Layout{})
			c, udp := w.connect(b, "tcp").GoExpress(), w.connect(b, "udp").GoExpress()

			before := c.MustFlow()
			b.Daemon.Kill()
			b.Up()
			after := c.MustFlow()
			if after.Oif != before.Oif || after.ExpressPackets[0] < before.ExpressPackets[0] {
				t.Errorf("taken over as %+v, was %+v", after, before)
			}
			c.GoExpress()
			udp.GoExpress()
			for n := range 2 {
				if of, _ := b.Container(n + 1); of.Entries != 2 || of.ExpressSent.Packets == 0 || of.ExpressReceived.Packets == 0 {
					t.Errorf("container %d: %+v", n+1, of)
				}
			}

			if !w.untracked {
				b.Sh(lab.Device, "conntrack -D -p udp")
				udp.WaitGone()
				udp.GoExpress()
			}
			closeWrite(t, c.Server)
			c.WaitGone()
			b.Sh(lab.Device, "ip link del veth2")
			udp.WaitGone()
			if totals := b.Status().Totals; totals.Entries != 0 {
				t.Errorf("%+v", totals)
			}
			b.WantNoInvalid()
		})
	}
}

// When conntrack begins to see connections that it did not, they are tracked
// and continue.
func TestUntrackedIsTracked(t *testing.T) {
	t.Parallel()
	b := newBetween(t, betweens["bridged"], scontest.Layout{})
	f := b.TrafficOver(direct(b, "tcp"), direct(b, "udp"))
	f.WaitExpress()
	b.Sh(lab.Device, "sysctl -q -w net.bridge.bridge-nf-call-iptables=1")
	scontest.Eventually(t, "both are known to conntrack", func() error {
		if flows := b.Flows(); len(flows) != 2 || flows[0].Untracked || flows[1].Untracked {
			return fmt.Errorf("%+v", flows)
		}
		return nil
	})
	f.WaitExpress()
	b.Sh(lab.Device, "conntrack -D -p udp")
	f.Proceed()
	f.WantUnbroken()
	b.WantNoInvalid()
}

// A container that others have as their gateway is not left out, although it
// leaves no trace: its rules are no business of the host's.
func TestHiddenGateway(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 2})
	b.Sh(lab.Device, bridgeAlone)
	b.Sh(lab.Container(1), "ip route replace default via 172.17.0.3")
	b.Sh(lab.Container(2), `
		sysctl -q -w net.ipv4.ip_forward=1
		sysctl -q -w net.ipv4.conf.all.send_redirects=0
		sysctl -q -w net.ipv4.conf.eth0.send_redirects=0
		sysctl -q -w net.ipv4.conf.all.rp_filter=0
		iptables-nft -t mangle -A PREROUTING -j TTL --ttl-inc 1`)
	b.Up()
	b.WaitHooked(1)
	b.WaitHooked(2)
	c := b.Outgoing("udp", 1)
	for range 20 {
		c.MustPing(20)
		if f, err := c.Flow(); err == nil && f.Peer == "" && f.Oif == lab.Uplink && strings.HasSuffix(f.Container, lab.Container(1)) {
			t.Fatalf("past its gateway: %+v", f)
		}
	}
	stops(t, c, 0, func() { b.Sh(lab.Container(2), "iptables-nft -I FORWARD -p udp -j DROP") })
}
