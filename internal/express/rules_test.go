package express_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// perPacket are rules that judge single packets of one port of edge, and the
// commands that remove them; %d is the port.
var perPacket = map[string]struct{ add, remove, names string }{
	"nft limit": {
		add: `nft add table ip judge
			nft add chain ip judge forward { type filter hook forward priority -5 ; }
			nft add rule ip judge forward udp dport %d limit rate 1000000/second accept`,
		remove: "nft delete table ip judge",
		names:  "ip judge forward handle 2 (limit)",
	},
	"iptables-nft hashlimit": {
		add:    "iptables-nft -I DOCKER-USER -p udp --dport %d -m hashlimit --hashlimit-upto 10000/sec --hashlimit-name h -j ACCEPT",
		remove: "iptables-nft -D DOCKER-USER 1",
		names:  "ip filter DOCKER-USER handle",
	},
	"iptables-legacy length": {
		add:    "iptables-legacy -w -t mangle -A PREROUTING -p udp --dport %d -m length --length 60000: -j DROP",
		remove: "iptables-legacy -w -t mangle -F",
		names:  "iptables-legacy mangle PREROUTING handle 1 (length)",
	},
	"iptables-legacy length, nowhere announced": {
		add:    "env XTABLES_LOCKFILE=/dev/null iptables-legacy -t mangle -A PREROUTING -p udp --dport %d -m length --length 60000: -j DROP",
		remove: "env XTABLES_LOCKFILE=/dev/null iptables-legacy -t mangle -F",
		names:  "iptables-legacy mangle PREROUTING handle 1 (length)",
	},
}

// A rule that judges single packets keeps regular the connections that it
// matches, and no others: new ones and those that were express.
func TestPerPacketRules(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for name, r := range perPacket {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			judged, other := b.Outgoing("udp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
			b.Sh(lab.Device, strings.ReplaceAll(r.add, "%d", fmt.Sprint(scontest.PortOf(judged.Server.LocalAddr()))))
			scontest.Eventually(t, "the Conentry goes", func() error {
				judged.MustPing(1)
				if _, err := judged.Flow(); err == nil {
					return errors.New("it is there")
				}
				return nil
			})
			judged.MustPing(64)
			if f, err := judged.Flow(); err == nil {
				t.Errorf("it has a Conentry again: %+v", f)
			}
			wantExplained(judged, r.names)
			other.GoExpress()

			b.Sh(lab.Device, r.remove)
			judged.GoExpress()
			other.GoExpress()
		})
	}
}

// Rules name devices: a renamed port comes under the rules of its new name.
func TestPerPacketRuleByNewName(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Device, `
		nft add table bridge judge
		nft add chain bridge judge f { type filter hook prerouting priority 0 ; }
		nft add rule bridge judge f iifname other limit rate 1000000/second counter`)
	c := b.Outgoing("udp", 1).GoExpress()
	need(b, "ip link set lo name lo1", "ip link set lo1 name lo") // one that is up, since Linux 6.2
	b.Sh(lab.Device, "ip link set veth1 name other")
	scontest.Eventually(t, "the Conentry goes", func() error {
		c.MustPing(1)
		if f, err := c.Flow(); err == nil {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	b.Sh(lab.Device, "ip link set other name veth1")
	c.GoExpress()
}

// wantExplained fails unless `scon explain` names the rule that keeps the
// connection regular.
func wantExplained(c *scontest.Connection, rule string) {
	c.B.T.Helper()
	client := c.Client
	x, err := c.B.Daemon.Explain(fmt.Sprintf("%s:%s->%s", c.Proto, client.LocalAddr(), client.RemoteAddr()))
	if err != nil {
		c.B.T.Fatal(err)
	}
	if x.Express || len(x.Findings) == 0 || !strings.Contains(x.Findings[0].What, rule) {
		c.B.T.Errorf("explained by %+v, want rule %q", x.Findings, rule)
	}
	if x, err = c.B.Daemon.Explain(lab.Port(1)); err != nil {
		c.B.T.Fatal(err)
	}
	named := false
	for _, f := range x.Findings {
		named = named || strings.Contains(f.What, rule)
	}
	if !named {
		c.B.T.Errorf("the container is explained by %+v, want rule %q", x.Findings, rule)
	}
}

// Regular packets of a connection that a rule keeps so are counted by that reason, in both
// directions. When the rule has gone, the container's explanation says since when, and a
// new one that keeps the same connection regular is named instead.
func TestPerPacketRuleIsTheReason(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	for _, proto := range []string{"tcp", "udp"} {
		t.Run(proto, func(t *testing.T) {
			b := b.In(t)
			c := b.Outgoing(proto, 1)
			rule := fmt.Sprintf("-p %s --dport %d -m limit --limit 10000/sec", proto, scontest.PortOf(c.Server.LocalAddr()))
			b.Sh(lab.Device, "iptables-nft -I DOCKER-USER "+rule+" -j ACCEPT")
			judged(b, c, "was kept regular by ip filter DOCKER-USER handle")
			before, _ := b.Container(1)
			const pings = 100
			c.MustPing(pings)
			after, _ := b.Container(1)
			counted := after.Reasons["per_packet_rule"] - before.Reasons["per_packet_rule"]
			if all := after.RegularPackets - before.RegularPackets; counted < 2*pings || all-counted > all/10 {
				t.Errorf("%d of %d packets: %v, before %v", counted, all, after.Reasons, before.Reasons)
			}

			b.Sh(lab.Device, "iptables-nft -D DOCKER-USER 1")
			scontest.Eventually(t, "the rule has gone", func() error {
				return explained(b, " ago by ip filter DOCKER-USER handle")
			})
			b.Sh(lab.Device, "iptables-nft -I FORWARD "+rule+" -j ACCEPT")
			scontest.Eventually(t, "another rule is there", func() error {
				return explained(b, "was kept regular by ip filter FORWARD handle")
			})
			b.Sh(lab.Device, "iptables-nft -D FORWARD 1")
			c.GoExpress()
		})
	}
}

// A connection that was kept regular for long gets a Conentry with its next few packets when
// that has ended, not when their number has doubled.
func TestExpressSoonAfter(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(b *scontest.Bed, c *scontest.Connection) (end func()){
		"a rule": func(b *scontest.Bed, c *scontest.Connection) func() {
			b.Sh(lab.Device, fmt.Sprintf("iptables-nft -I DOCKER-USER -p udp --dport %d -m limit --limit 10000/sec -j ACCEPT", scontest.PortOf(c.Server.LocalAddr())))
			judged(b, c, "was kept regular by ip filter DOCKER-USER handle")
			return func() {
				b.Sh(lab.Device, "iptables-nft -D DOCKER-USER 1")
				scontest.Eventually(b.T, "the rule has gone", func() error {
					return explained(b, " ago by ip filter DOCKER-USER handle")
				})
			}
		},
		"a pause": func(b *scontest.Bed, c *scontest.Connection) func() {
			if err := b.Daemon.Pause(lab.Port(1)); err != nil {
				b.T.Fatal(err)
			}
			return func() {
				if err := b.Daemon.Resume(lab.Port(1)); err != nil {
					b.T.Fatal(err)
				}
			}
		},
		"a setting": func(b *scontest.Bed, c *scontest.Connection) func() {
			b.Daemon.Kill()
			b.Config.Regular = []config.Selector{{Name: filepath.Base(b.Node(lab.Container(1)))}}
			b.Up()
			return func() {
				b.Daemon.Kill()
				b.Config.Regular = nil
				b.Up()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{})
			c := b.Outgoing("udp", 1)
			end := keep(b, c)
			c.MustPing(600) // 1200 packets or more: it is announced with the 2048th
			if f, err := c.Flow(); err == nil {
				t.Fatalf("it has a Conentry: %+v", f)
			}
			end()
			c.MustPing(16)
			scontest.Eventually(t, "it has a Conentry", func() error {
				_, err := c.Flow()
				return err
			})
		})
	}
}

// judged waits until a connection is kept regular, as a finding about container 1 says, and
// counted as that: its Conentry before stays closed for a while, and what comes back is
// known to be the container's once its device has been found.
func judged(b *scontest.Bed, c *scontest.Connection, finding string) {
	b.T.Helper()
	scontest.Eventually(b.T, "it is judged", func() error {
		const pings = 16
		before, _ := b.Container(1)
		c.MustPing(pings)
		if after, _ := b.Container(1); after.Reasons["per_packet_rule"] < before.Reasons["per_packet_rule"]+2*pings {
			return fmt.Errorf("not all packets are counted: %v", after.Reasons)
		}
		return explained(b, finding)
	})
}

// explained returns an error unless a finding about container 1 has the text.
func explained(b *scontest.Bed, text string) error {
	b.T.Helper()
	x, err := b.Daemon.Explain(lab.Port(1))
	if err != nil {
		b.T.Fatal(err)
	}
	for _, f := range x.Findings {
		if strings.Contains(f.What, text) {
			return nil
		}
	}
	return fmt.Errorf("no finding has %q: %+v", text, x.Findings)
}

// Regular packets of a paused container are counted by that reason, also those of
// connections that begin meanwhile; so are those of all containers if SCON is paused.
func TestPauseIsTheReason(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Outgoing("udp", 1).GoExpress()
	for _, container := range []string{lab.Port(1), ""} {
		if err := b.Daemon.Pause(container); err != nil {
			t.Fatal(err)
		}
		for _, proto := range []string{"tcp", "udp"} {
			before, _ := b.Container(1)
			const pings = 50
			b.Outgoing(proto, 1).MustPing(pings)
			after, _ := b.Container(1)
			if paused := after.Reasons["paused"] - before.Reasons["paused"]; paused < 2*pings || after.RegularPackets-before.RegularPackets > paused+10 {
				t.Errorf("container %q, %s: %v, before %v", container, proto, after.Reasons, before.Reasons)
			}
		}
		if err := b.Daemon.Resume(container); err != nil {
			t.Fatal(err)
		}
		b.Outgoing("udp", 1).GoExpress()
	}
}

// Rules that exist when the daemon starts count as well. A limit on new
// connections does not keep express ones regular.
func TestRulesAtStart(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	judged, other := b.Outgoing("tcp", 1), b.Outgoing("tcp", 1)
	b.Sh(lab.Device, fmt.Sprintf(`
		iptables-nft -I DOCKER-USER -p tcp --dport %d -m limit --limit 10000/sec -j RETURN
		iptables-nft -A FORWARD -m conntrack --ctstate NEW -m limit --limit 10/sec -j LOG`,
		scontest.PortOf(judged.Server.LocalAddr())))
	b.Up()
	other.GoExpress()
	judged.MustPing(64)
	if f, err := judged.Flow(); err == nil {
		t.Errorf("it has a Conentry: %+v", f)
	}
	s := b.Status()
	if c, _ := b.Container(1); s.State != api.StateActive || s.Why != "" || c.Entries != 1 {
		t.Errorf("state %q (%s), %d Conentries, want 1", s.State, s.Why, c.Entries)
	}
}

// As soon as a rule that judges single packets exists, each packet reaches it,
// however long reading the rules takes.
func TestPerPacketRuleMissesNothing(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	file := filepath.Join(t.TempDir(), "rules")
	var rules strings.Builder
	rules.WriteString("table ip judge {\ncounter matched { }\nchain long {\n")
	for i := range 4000 {
		fmt.Fprintf(&rules, "ip saddr 10.1.%d.%d tcp dport 80 accept\n", i/250, i%250)
	}
	rules.WriteString("}\nchain forward { type filter hook forward priority -5; }\n}\n")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Sh(lab.Device, "nft -f "+file)
	c := b.Outgoing("udp", 1).GoExpress()

	b.Sh(lab.Device, fmt.Sprintf("nft add rule ip judge forward udp dport %d counter name matched limit rate 1000000/second accept",
		scontest.PortOf(c.Server.LocalAddr())))
	time.Sleep(20 * time.Millisecond) // a netlink message takes less
	const pings = 500
	c.MustPing(pings)
	if matched := countedBy(b, "ip judge matched"); matched < pings {
		t.Errorf("the rule matched %d of %d packets", matched, pings)
	}
}

// A counter that the settings name misses no packet, and keeps only the
// connections regular that it counts.
func TestExactCounters(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) { c.ExactCounters = []string{"billing"} }})
	counted, other := b.Outgoing("udp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, fmt.Sprintf(`
		nft add table ip bill
		nft add chain ip bill forward { type filter hook forward priority -5 ; }
		nft add counter ip bill matched
		nft add rule ip bill forward udp dport %d counter name matched comment billing`,
		scontest.PortOf(counted.Server.LocalAddr())))
	counted.WaitGone()
	before := countedBy(b, "ip bill matched")
	const pings = 64
	counted.MustPing(pings)
	if matched := countedBy(b, "ip bill matched") - before; matched != pings {
		t.Errorf("the counter has %d of %d packets", matched, pings)
	}
	wantExplained(counted, "ip bill forward handle 3 (exact counter billing)")
	other.GoExpress()
}

// countedBy returns how many packets a named counter has counted.
func countedBy(b *scontest.Bed, counter string) (packets int) {
	b.T.Helper()
	out := b.Sh(lab.Device, "nft list counter "+counter)
	if _, err := fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &packets); err != nil {
		b.T.Fatalf("%v: %s", err, out)
	}
	return packets
}

// A rule about one of many connections has that one go regular, and no packet of the
// others.
func TestRuleAboutOneOfMany(t *testing.T) {
	t.Parallel()
	const clients, servers = 250, 32 // ports
	b := scontest.NewExpress(t, scontest.Layout{Config: func(c *config.Config) {
		c.Connections, c.PerContainerShare = 2*clients*servers, 100
		c.Admit, c.LeaseMax = 3, time.Minute
	}})
	b.Sh(lab.Edge, "iptables-nft -I INPUT -p udp --dport 20000:29999 -j DROP") // no answers but ours
	b.Sh(lab.Device, `nft add table ip one
		nft add chain ip one forward { type filter hook forward priority -5 ; }`)
	inside, outside := b.OpenWire(lab.Container(1)), b.OpenWire(lab.Edge)
	uplink := b.OpenDevice(lab.Device, lab.Uplink).Iface.HardwareAddr
	var sent, answers [][]byte
	for i := range clients * servers {
		client, server := uint16(10000+i/servers), netip.AddrPortFrom(lab.EdgeAddr, uint16(20000+i%servers))
		sent = append(sent, scontest.Frame(b.BridgeMAC(), inside.Iface.HardwareAddr, netip.AddrPortFrom(lab.ContainerAddr(1), client), server, "x"))
		answers = append(answers, scontest.Frame(uplink, outside.Iface.HardwareAddr, server, netip.AddrPortFrom(lab.DeviceAddr, client), "x"))
	}
	round := func() (express uint64) {
		before := b.Status().Totals.ExpressPackets
		inside.SendAll(sent)
		outside.SendAll(answers)
		return b.Status().Totals.ExpressPackets - before
	}
	round()
	time.Sleep(2*time.Second + 100*time.Millisecond) // conntrack takes them for streams: their leases are long
	scontest.Eventually(t, "all go express", func() error {
		if n := round(); n < uint64(2*len(sent)) {
			return fmt.Errorf("%d packets of %d", n, 2*len(sent))
		}
		return nil
	})
	for i := range 10 { // where the loop has to wait for a processor, all decisions are confirmed
		before := b.Status()
		b.Sh(lab.Device, fmt.Sprintf("nft add rule ip one forward udp sport %d udp dport %d drop", 10000+i, 20000+i))
		scontest.Eventually(t, "the rules are known", func() error {
			if s := b.Status(); s.Rules.Generation == before.Rules.Generation || s.Generation == before.Generation && s.Rules.Retired == before.Rules.Retired {
				return fmt.Errorf("%+v", s.Rules)
			}
			return nil
		})
		now := b.Status()
		express := round()
		if now.Generation != before.Generation {
			round()
			continue
		}
		if concerned := now.Rules.Retired - before.Rules.Retired; concerned != 1 {
			t.Errorf("%d Conentries were concerned", concerned)
		}
		if least := uint64(2*len(sent)) * 99 / 100; express < least || express > uint64(2*(len(sent)-1)-i) {
			t.Errorf("%d of %d packets went express", express, 2*len(sent))
		}
		return
	}
	t.Error("no change of rules was decided about in time")
}

// Rules that go and come back, as with a firewall's reload, have a connection confirmed by a
// packet of each direction each time, and no more.
func TestReload(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Device, `nft add table ip wall
		nft add chain ip wall forward { type filter hook forward priority -5 ; }
		nft add rule ip wall forward ct state established accept`)
	c := b.Outgoing("udp", 1).GoExpress()
	before, flow := b.Status(), c.MustFlow()
	const reloads, between = 5, 40
	for range reloads {
		b.Sh(lab.Device, "nft flush chain ip wall forward")
		time.Sleep(20 * time.Millisecond) // a netlink message takes less
		c.MustPing(between)
		b.Sh(lab.Device, "nft add rule ip wall forward ct state established accept")
		time.Sleep(20 * time.Millisecond)
		c.MustPing(between)
	}
	if now := c.MustFlow(); now.AgeMS < flow.AgeMS {
		t.Errorf("the Conentry is another one: %+v, before %+v", now, flow)
	}
	if n := b.Status().Rules.Retired - before.Rules.Retired; n == 0 {
		t.Error("no change concerned the connection")
	}
	express := c.MustFlow().ExpressPackets[0] - flow.ExpressPackets[0]
	if express < 2*reloads*(between-5) {
		t.Errorf("%d of %d packets were express", express, 2*reloads*between)
	}
}
