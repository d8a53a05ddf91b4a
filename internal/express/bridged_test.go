package express_test

import (
	"errors"
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

// Edge's addresses in the containers' network, where the wire is a port of their bridge.
var (
	neighbour  = netip.MustParseAddr("172.17.0.99")
	neighbour6 = netip.MustParseAddr("fd00:17::99")
)

// newBridged is a bed in which the wire is a port of the containers' bridge, so that edge is
// a machine in their network. A wire of the lab is like a container's: the configuration
// names it. In the others' place the bridge has the device's address, if any.
//
//	edge                  device                    c1
//	eth0 172.17.0.99 ==== eth0 -- docker0 -- veth1 ==== eth0 172.17.0.2
func newBridged(t *testing.T, l scontest.Layout, setUp string) *scontest.Bed {
	t.Helper()
	l.IPv6 = true
	change := l.Config
	l.Config = func(c *config.Config) {
		c.Uplinks = config.Devices{lab.Uplink}
		if change != nil {
			change(c)
		}
	}
	b := scontest.New(t, l)
	b.Sh(lab.Device, `
		ip addr flush dev eth0
		ip link set eth0 master docker0`+setUp)
	b.Sh(lab.Edge, `
		ip addr flush dev eth0
		ip addr add 172.17.0.99/16 dev eth0
		ip addr add fd00:17::99/64 dev eth0 nodad`)
	b.Up()
	b.WaitHooked(1)
	settled(b, max(l.Containers, 1))
	return b
}

// All bytes between a container and a machine in its bridge's network arrive as they were
// sent, nearly all of them express, in both directions, whether Netfilter looks into the
// bridge or not.
func TestBridgedOut(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]string{"tracked": "", "alone": bridgeAlone} {
		for _, offload := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBridged(t, scontest.Layout{Offload: offload}, setUp)
				for _, proto := range []string{"tcp", "udp"} {
					for where, connect := range map[string]func() *scontest.Connection{
						"out": func() *scontest.Connection {
							return b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(neighbour, 700))
						},
						"in": func() *scontest.Connection {
							return b.Connect(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.ContainerAddr(1), 700))
						},
						"out over IPv6": func() *scontest.Connection {
							return b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(neighbour6, 700))
						},
						"in over IPv6": func() *scontest.Connection {
							return b.Connect(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.ContainerAddr6(1), 700))
						},
					} {
						c := connect()
						c.ExchangeExpress(1 << 20)
						if f := c.MustFlow(); f.Path != api.PathBridged || f.Peer != "" || f.Oif != lab.Uplink || f.Untracked != (setUp != "") {
							t.Errorf("%s %s: %+v", proto, where, f)
						}
						c.Close()
					}
				}
				b.WantNoInvalid()
			})
		}
	}
}

// The same where Netfilter looks into the bridge and nothing has enabled conntrack, until
// something does.
func TestBridgedOutWithoutRules(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, "\nnft flush ruleset")
	out, in := outward(b, "tcp").GoExpress(), inward(b, "udp").GoExpress()
	for _, c := range []*scontest.Connection{out, in} {
		if f := c.MustFlow(); !f.Untracked || f.Oif != lab.Uplink {
			t.Errorf("%+v", f)
		}
	}
	b.Sh(lab.Device, `
		nft add table ip t
		nft add chain ip t f { type filter hook forward priority 0 ; }
		nft add rule ip t f ct state invalid drop`)
	for _, c := range []*scontest.Connection{out, in} {
		c.GoExpress()
		if f := c.MustFlow(); f.Untracked {
			t.Errorf("%+v", f)
		}
	}
}

// outward connects container 1 to edge, over IPv4.
func outward(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(neighbour, 700))
}

// inward connects edge to container 1.
func inward(b *scontest.Bed, proto string) *scontest.Connection {
	b.T.Helper()
	return b.Connect(proto, lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.ContainerAddr(1), 700))
}

// What the bridge or its rules no longer forward by the port that leads out, or from there,
// does not go express.
func TestPolicyBridgedOut(t *testing.T) {
	t.Parallel()
	const inBridge = "nft add table bridge f\nnft add chain bridge f f { type filter hook forward priority 0 ; }\n"
	for name, tc := range map[string]struct {
		tracked      bool
		connect      func(b *scontest.Bed, proto string) *scontest.Connection
		change, undo string
		bound        time.Duration
	}{
		"a rule in the bridge": {
			connect: outward, change: inBridge + "nft add rule bridge f f oifname eth0 ip protocol udp drop", undo: "nft delete table bridge f",
		},
		"a rule in the bridge, inwards": {
			connect: inward, change: inBridge + "nft add rule bridge f f iifname eth0 ip protocol udp drop", undo: "nft delete table bridge f",
		},
		"a rule of ebtables": {
			connect: outward, change: "ebtables-nft -A FORWARD -p IPv4 -o eth0 -j DROP", undo: "ebtables-nft -F FORWARD",
		},
		"a rule of IP": {
			tracked: true, connect: outward, change: "iptables-nft -I DOCKER-USER -p udp -j DROP", undo: "iptables-nft -D DOCKER-USER 1",
		},
		"a rule of IP, inwards": {
			tracked: true, connect: inward, change: "iptables-nft -I DOCKER-USER -p udp -j DROP", undo: "iptables-nft -D DOCKER-USER 1",
		},
		"isolated ports": {
			connect: outward, change: "bridge link set dev veth1 isolated on\nbridge link set dev eth0 isolated on", undo: "bridge link set dev eth0 isolated off",
		},
		"isolated ports, inwards": {
			connect: inward, change: "bridge link set dev eth0 isolated on\nbridge link set dev veth1 isolated on", undo: "bridge link set dev veth1 isolated off",
		},
		"a port that is disabled": {
			connect: outward, change: "bridge link set dev eth0 state 0", undo: "bridge link set dev eth0 state 3",
		},
		"a port that is disabled, inwards": {
			connect: inward, change: "bridge link set dev eth0 state 0", undo: "bridge link set dev eth0 state 3",
		},
		"a port that is down": {connect: outward, change: "ip link set eth0 down", undo: "ip link set eth0 up"},
		"a port that leaves":  {connect: inward, change: "ip link set eth0 nomaster", undo: "ip link set eth0 master docker0"},
		"a locked port": {
			connect: inward, change: "bridge link set dev eth0 locked on\nbridge fdb del EDGE dev eth0 master", undo: "bridge link set dev eth0 locked off",
		},
		"the machine's MAC address at another port": {
			connect: outward, change: "bridge fdb replace EDGE dev veth1 master static sticky", undo: "bridge fdb del EDGE dev veth1 master",
		},
		"the container's MAC address at another port": {
			connect: inward, change: "bridge fdb replace 02:42:ac:11:00:02 dev eth0 master static sticky", undo: "bridge fdb del 02:42:ac:11:00:02 dev eth0 master",
		},
		"what nobody announces": {
			connect: outward, change: "sysctl -q -w net.bridge.bridge-nf-call-iptables=1", undo: "iptables-nft -D DOCKER-USER 1", bound: scontest.Lease,
		},
		"the bridge's own setting": {
			connect: outward, change: "ip link set docker0 type bridge nf_call_iptables 1", undo: "iptables-nft -D DOCKER-USER 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setUp := bridgeAlone
			if tc.tracked {
				setUp = ""
			}
			b := newBridged(t, scontest.Layout{}, setUp)
			if strings.HasPrefix(tc.undo, "iptables") && !tc.tracked {
				b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -i docker0 -o docker0 -p udp -j DROP")
			}
			edge := strings.NewReplacer("EDGE", macIn(b, lab.Edge).String())
			c := tc.connect(b, "udp").GoExpress()
			stops(t, c, tc.bound, func() { b.Sh(lab.Device, edge.Replace(tc.change)) })
			b.Sh(lab.Device, edge.Replace(tc.undo))
			// A port that comes up forwards when its operational state is up, up to a second later:
			// net/bridge/br.c:br_device_event, net/core/link_watch.c.
			scontest.Eventually(t, "both ports forward", func() error {
				if ports := b.Sh(lab.Device, "bridge link show"); strings.Count(ports, "state forwarding") != 2 {
					return errors.New(ports)
				}
				return nil
			})
			c.GoExpress()
		})
	}
}

// A packet that the bridge sends by all ports, since it does not know where its MAC address
// is, decides nothing.
func TestBridgedOutFlood(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, bridgeAlone)
	c := outward(b, "udp").GoExpress()
	forget := fmt.Sprintf("bridge fdb del %v dev eth0 master", macIn(b, lab.Edge))
	express := func() uint64 { return c.MustFlow().ExpressPackets[0] }
	b.Sh(lab.Device, forget)
	time.Sleep(20 * time.Millisecond) // a netlink message takes less
	before := express()
	for range 50 {
		if err := scontest.Pass(c.Client, c.Server, 64); err != nil {
			t.Fatal(err)
		}
	}
	if now := express(); now != before {
		t.Errorf("%d packets to an address that the bridge does not know went express", now-before)
	}
	c.GoExpress()
}

// What the bridge has sent by all ports has left by one that does not lead to its receiver, as
// the first answer shows: the next packets decide anew, before the lease ends.
func TestBridgedOutFloodElsewhere(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) {
		c.Uplinks = config.Devices{lab.Uplink, "p1", "p2"}
		c.Lease, c.LeaseMax = time.Minute, time.Minute
	}})
	layPorts(b)
	b.Sh(lab.Device, bridgeAlone+`
		ip addr flush dev eth0
		ip link set p1 master docker0
		ip link set eth0 master docker0
		ip link set p2 master docker0
		ip link set p1 up
		ip link set p2 up`)
	b.Sh(lab.Edge, `
		ip addr flush dev eth0
		ip addr add 172.17.0.99/16 dev eth0
		ip link set p1 up arp off
		ip link set p2 up arp off`)
	b.Up()
	b.WaitHooked(1)
	c := outward(b, "udp").GoExpress()
	b.Sh(lab.Device, fmt.Sprintf("bridge fdb del %v dev eth0 master", macIn(b, lab.Edge)))
	for range 20 {
		if err := scontest.Pass(c.Client, c.Server, 64); err != nil {
			t.Fatal(err)
		}
	}
	if f := c.GoExpress().MustFlow(); f.Oif != lab.Uplink {
		t.Errorf("%+v", f)
	}
}

// What the bridge sends by all ports since the address has aged decides nothing, either.
func TestBridgedOutAgeing(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, bridgeAlone+"\nip link set docker0 type bridge ageing_time 200") // 2 s
	c := outward(b, "udp").GoExpress()
	for quiet, before := 0, c.MustFlow().ExpressPackets[0]; quiet < 100; {
		if err := scontest.Pass(c.Client, c.Server, 64); err != nil { // nothing comes back
			t.Fatal(err)
		}
		now := c.MustFlow().ExpressPackets[0]
		if quiet++; now != before {
			quiet = 0
		}
		before = now
		time.Sleep(10 * time.Millisecond)
	}
	if learnt := b.Sh(lab.Device, "bridge fdb show br docker0"); strings.Contains(learnt, macIn(b, lab.Edge).String()) {
		t.Errorf("regular before the address has aged:\n%s", learnt)
	}
	c.GoExpress()
}

// A port that the spanning tree blocks carries nothing, and takes over what another one has
// carried that goes.
func TestBridgedOutSpanningTree(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.Uplinks = config.Devices{lab.Uplink, "p1"} }})
	layPort(b, "p1")
	const fast = "stp_state 1 forward_delay 200 hello_time 100 max_age 600" // in hundredths of a second
	b.Sh(lab.Edge, `
		ip addr flush dev eth0
		ip link add br0 type bridge priority 0 `+fast+`
		ip link set eth0 master br0
		ip link set p1 master br0
		ip link set br0 up
		ip addr add 172.17.0.99/16 dev br0`)
	b.Sh(lab.Device, bridgeAlone+`
		ip link set docker0 type bridge `+fast+`
		ip addr flush dev eth0
		ip link set eth0 master docker0
		ip link set p1 master docker0
		ip link set p1 up`)
	b.Sh(lab.Edge, "ip link set p1 up")
	b.Up()
	b.WaitHooked(1)
	scontest.Eventually(t, "the tree is there", func() error { // ARP gives up before
		ports := b.Sh(lab.Device, "bridge link show") + b.Sh(lab.Edge, "bridge link show")
		if forwarding := strings.Count(ports, "state forwarding"); forwarding != 4 { // edge's two, one of device's, the container's
			return fmt.Errorf("%d ports forward:\n%s", forwarding, ports)
		}
		return nil
	})
	c := outward(b, "tcp").GoExpress()
	used := c.MustFlow().Oif
	other := map[string]string{lab.Uplink: "p1", "p1": lab.Uplink}[used]
	if state := b.Sh(lab.Device, "bridge link show dev "+other); !strings.Contains(state, "state blocking") {
		t.Errorf("the tree does not block %s: %s", other, state)
	}
	b.Sh(lab.Edge, "ip link set "+used+" down")
	c.GoExpress()
	if f := c.MustFlow(); f.Oif != other {
		t.Errorf("%+v", f)
	}
}

// The port is an uplink as long as the bridge learns MAC addresses, and otherwise named with
// the reason.
func TestBridgedOutNeedsLearning(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, bridgeAlone)
	c := outward(b, "udp").GoExpress()
	for change, tc := range map[string]struct{ undo, reason string }{
		"bridge link set dev eth0 learning off":         {"bridge link set dev eth0 learning on", "docker0 learns no MAC addresses at eth0 (learning off)"},
		"bridge link set dev veth1 learning off":        {"bridge link set dev veth1 learning on", "docker0 learns no MAC addresses at veth1 (learning off)"},
		"ip link set docker0 type bridge ageing_time 0": {"ip link set docker0 type bridge ageing_time 30000", "docker0 forgets MAC addresses at once (ageing_time 0)"},
	} {
		b.Sh(lab.Device, change)
		scontest.Eventually(t, "eth0 is skipped", func() error {
			if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != lab.Uplink || !strings.HasSuffix(s[0].Reason, tc.reason) {
				return fmt.Errorf("skipped: %+v", s)
			}
			return nil
		})
		before := b.ExpressPackets()
		c.MustPing(20)
		if now := b.ExpressPackets(); now != before {
			t.Errorf("%s: %d packets went express", change, now-before)
		}
		x, err := b.Daemon.Explain(lab.Port(1))
		if err != nil || !strings.Contains(fmt.Sprint(x.Findings), tc.reason) {
			t.Errorf("explained as %+v, %v", x, err)
		}
		b.Sh(lab.Device, tc.undo)
		c.GoExpress()
	}
}

// A MAC address that ages, or moves to another port, concerns the connections with it.
func TestBridgedOutScope(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{Containers: 2}, bridgeAlone)
	c := outward(b, "udp").GoExpress()
	generation := b.Status().Generation
	b.Sh(lab.Device, `
		bridge fdb add 02:00:00:00:00:77 dev eth0 master static
		bridge fdb replace 02:00:00:00:00:77 dev veth2 master static
		bridge fdb replace 02:00:00:00:00:77 dev eth0 master static
		bridge fdb del 02:00:00:00:00:77 dev eth0 master`)
	time.Sleep(20 * time.Millisecond)
	before := b.Status().Reasons["new_generation"] + b.Status().Reasons["composing"]
	c.MustPing(3)
	if now := b.Status(); now.Generation != generation || now.Reasons["new_generation"]+now.Reasons["composing"] != before {
		t.Errorf("generation %d, then %d; %v", generation, now.Generation, now.Reasons)
	}
}

// What the host itself sends and receives by the bridge's own address, and between it and
// the containers, is regular.
func TestBridgedOutHost(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, bridgeAlone)
	for _, proto := range []string{"tcp", "udp"} {
		for _, c := range []*scontest.Connection{
			b.Connect(proto, lab.Edge, lab.Device, netip.AddrPortFrom(lab.BridgeAddr, 700)),
			b.Connect(proto, lab.Device, lab.Edge, netip.AddrPortFrom(neighbour, 700)),
			b.Connect(proto, lab.Device, lab.Container(1), netip.AddrPortFrom(lab.ContainerAddr(1), 700)),
		} {
			c.MustPing(50)
			c.Close()
		}
	}
	if n := b.ExpressPackets(); n != 0 {
		t.Errorf("%d packets went express", n)
	}
}

// A rule that judges single packets keeps regular what may reach it in the bridge or at the
// port that leads out.
func TestRulesBridgedOut(t *testing.T) {
	t.Parallel()
	const inBridge = "nft add table bridge f\nnft add chain bridge f f { type filter hook forward priority 0 ; }\n"
	for name, tc := range map[string]struct {
		tracked bool
		rule    string
		matches bool
	}{
		"of the port":         {rule: inBridge + "nft add rule bridge f f oifname eth0 limit rate 100000/second accept", matches: true},
		"of another port":     {rule: inBridge + "nft add rule bridge f f oifname eth9 limit rate 100000/second accept"},
		"at the port":         {rule: "nft add table netdev f\nnft add chain netdev f f { type filter hook ingress device eth0 priority 0 ; }\nnft add rule netdev f f limit rate 100000/second accept", matches: true},
		"of IP":               {tracked: true, rule: "iptables-nft -I FORWARD -i docker0 -o docker0 -m limit --limit 10000/s -j ACCEPT", matches: true},
		"of IP, to elsewhere": {tracked: true, rule: "iptables-nft -I FORWARD -i docker0 -o eth9 -m limit --limit 10000/s -j ACCEPT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setUp := bridgeAlone
			if tc.tracked {
				setUp = ""
			}
			b := newBridged(t, scontest.Layout{}, setUp)
			c := outward(b, "udp").GoExpress()
			b.Sh(lab.Device, tc.rule)
			if !tc.matches {
				c.GoExpress()
				return
			}
			c.WaitGone()
			c.MustPing(40)
			if f, err := c.Flow(); err == nil {
				t.Errorf("composed again: %+v", f)
			}
		})
	}
}

// Packets from a card do not overtake each other while they switch paths.
func TestOrderBridgedOut(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{Offload: true, Config: func(c *config.Config) { c.LeasePackets = 50 }}, bridgeAlone)
	keepOrder(t, b, inward(b, "udp"), scontest.SendNumbers)
}

// A machine that moves from one card to another takes its connections along.
func TestBridgedOutMoves(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) { c.Uplinks = config.Devices{lab.Uplink, "p1"} }})
	layPort(b, "p1")
	b.Sh(lab.Device, bridgeAlone+`
		ip addr flush dev eth0
		ip link set eth0 master docker0
		ip link set p1 master docker0
		ip link set p1 up`)
	b.Sh(lab.Edge, "ip addr flush dev eth0\nip addr add 172.17.0.99/16 dev eth0")
	b.Up()
	b.WaitHooked(1)
	c, udp := outward(b, "tcp").GoExpress(), inward(b, "udp").GoExpress()
	if f := c.MustFlow(); f.Oif != lab.Uplink {
		t.Errorf("%+v", f)
	}
	b.Sh(lab.Edge, fmt.Sprintf(`
		ip addr flush dev eth0
		ip link set eth0 down
		ip link set p1 address %v
		ip link set p1 up
		ip addr add 172.17.0.99/16 dev p1
		ip neigh replace 172.17.0.2 lladdr 02:42:ac:11:00:02 dev p1 nud reachable`, macIn(b, lab.Edge)))
	if _, err := c.Server.Write([]byte("from its new place")); err != nil { // the bridge learns it
		t.Fatal(err)
	}
	if _, err := c.Client.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	for _, moved := range []*scontest.Connection{c, udp} {
		moved.GoExpress()
		if f := moved.MustFlow(); f.Oif != "p1" {
			t.Errorf("%+v", f)
		}
	}
}

// A connection that conntrack sees survives a killed daemon express, another one regular.
func TestLifeBridgedOut(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]string{"tracked": "", "alone": bridgeAlone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBridged(t, scontest.Layout{}, setUp)
			f := b.TrafficOver(outward(b, "tcp"), inward(b, "udp"))
			f.WaitExpress()
			b.Daemon.Kill()
			b.Up()
			f.WaitExpress()
			b.Daemon.Down()
			f.Proceed()
			b.Up()
			f.WaitExpress()
			f.WantUnbroken()
			b.WantNoInvalid()
		})
	}
}

// Where a bridge filters VLANs, what it forwards by the port stays regular, as untagged and
// tagged packets may be of different ones.
func TestBridgedOutVLAN(t *testing.T) {
	t.Parallel()
	b := newBridged(t, scontest.Layout{}, bridgeAlone)
	need(b, "ip link add probe type bridge vlan_filtering 1", "ip link del probe")
	c := outward(b, "udp").GoExpress()
	b.Sh(lab.Device, "ip link set docker0 type bridge vlan_filtering 1")
	scontest.Eventually(t, "eth0 is skipped", func() error {
		if s := b.Status().Skipped; len(s) != 1 || !strings.HasSuffix(s[0].Reason, "docker0 filters VLANs (vlan_filtering)") {
			return fmt.Errorf("skipped: %+v", s)
		}
		return nil
	})
	before := b.ExpressPackets()
	c.MustPing(20)
	if now := b.ExpressPackets(); now != before {
		t.Errorf("%d packets went express", now-before)
	}
}
