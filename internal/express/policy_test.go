package express_test

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// rule is a change of policy that stops what container 1 sends.
type rule struct {
	name        string
	add, remove string // commands in device
	prepare     string // before anything goes express
	tidy        string // at the end
	// both means that what container 1 receives stops as well, receives that
	// this is all.
	both, receives bool
	// silent means that it is not announced.
	silent bool
}

var firewalls = []rule{
	{
		name: "nft drop",
		add: `nft add table ip stop
			nft add chain ip stop forward { type filter hook forward priority -5 ; }
			nft add rule ip stop forward ip saddr 172.17.0.2 drop`,
		remove: "nft delete table ip stop",
	},
	{
		name:   "iptables-nft drop",
		add:    "iptables-nft -I DOCKER-USER -s 172.17.0.2 -j DROP",
		remove: "iptables-nft -D DOCKER-USER -s 172.17.0.2 -j DROP",
	},
	{
		name:   "iptables-nft reject",
		add:    "iptables-nft -I DOCKER-USER -s 172.17.0.2 -j REJECT",
		remove: "iptables-nft -D DOCKER-USER -s 172.17.0.2 -j REJECT",
	},
	{
		name:   "iptables-legacy drop",
		add:    "iptables-legacy -w -I FORWARD -s 172.17.0.2 -j DROP",
		remove: "iptables-legacy -w -D FORWARD -s 172.17.0.2 -j DROP",
	},
	{
		name:   "iptables-legacy drop, nowhere announced",
		add:    "env XTABLES_LOCKFILE=/dev/null iptables-legacy -I FORWARD -s 172.17.0.2 -j DROP",
		remove: "env XTABLES_LOCKFILE=/dev/null iptables-legacy -D FORWARD -s 172.17.0.2 -j DROP",
		silent: true,
	},
	{
		name: "nft element",
		prepare: `nft add table ip stop
			nft add set ip stop banned { type ipv4_addr ; }
			nft add chain ip stop forward { type filter hook forward priority -5 ; }
			nft add rule ip stop forward ip saddr @banned drop`,
		add:    "nft add element ip stop banned { 172.17.0.2 }",
		remove: "nft delete element ip stop banned { 172.17.0.2 }",
		tidy:   "nft delete table ip stop",
	},
}

var sets = []rule{
	{
		name: "ipset add",
		prepare: `ipset create banned hash:ip
			iptables-nft -I DOCKER-USER -m set --match-set banned src -j DROP`,
		add:    "ipset add banned 172.17.0.2",
		remove: "ipset del banned 172.17.0.2",
		tidy:   "iptables-nft -D DOCKER-USER 1",
		silent: true,
	},
	{
		name: "ipset swap",
		prepare: `ipset create quiet hash:ip
			ipset create loud hash:ip
			ipset add loud 172.17.0.2
			iptables-legacy -w -I FORWARD -m set --match-set quiet src -j DROP`,
		add:    "ipset swap quiet loud",
		remove: "ipset swap quiet loud",
		tidy:   "iptables-legacy -w -D FORWARD 1",
		silent: true,
	},
	{
		name: "ipset of who may",
		prepare: `ipset create allowed hash:ip
			ipset add allowed 172.17.0.2
			iptables-nft -I DOCKER-USER -i docker0 -m set ! --match-set allowed src -j DROP`,
		add:    "ipset del allowed 172.17.0.2",
		remove: "ipset add allowed 172.17.0.2",
		tidy:   "iptables-nft -D DOCKER-USER 1",
		silent: true,
	},
}

var marks = []rule{
	{
		name: "mark in conntrack",
		prepare: `nft add table ip stop
			nft add chain ip stop forward { type filter hook forward priority -5 ; }
			nft add rule ip stop forward ip saddr 172.17.0.2 ct mark 7 drop`,
		add:    "conntrack --update --orig-src 172.17.0.2 --mark 7",
		remove: "conntrack --update --orig-src 172.17.0.2 --mark 0",
		tidy:   "nft delete table ip stop",
		silent: true,
	},
	{
		name: "mark in conntrack that a route needs",
		prepare: `iptables-nft -t mangle -A PREROUTING -s 172.17.0.2 -j CONNMARK --restore-mark
			ip rule add fwmark 7 blackhole`,
		add:    "conntrack --update --orig-src 172.17.0.2 --mark 7",
		remove: "conntrack --update --orig-src 172.17.0.2 --mark 0",
		tidy:   "iptables-nft -t mangle -F\nip rule del fwmark 7 blackhole",
		silent: true,
	},
}

var routing = []rule{
	{
		name:   "policy routing",
		add:    "ip rule add from 172.17.0.2 blackhole",
		remove: "ip rule del from 172.17.0.2 blackhole",
		both:   true, // nothing comes from where nothing leads to
	},
	{
		name:    "policy routing by mark",
		prepare: "iptables-nft -t mangle -A PREROUTING -s 172.17.0.2 -j MARK --set-mark 7",
		add:     "ip rule add fwmark 7 blackhole",
		remove:  "ip rule del fwmark 7 blackhole",
		tidy:    "iptables-nft -t mangle -F",
	},
	{
		name:   "route",
		add:    "ip route add blackhole 10.77.0.2",
		remove: "ip route del blackhole 10.77.0.2",
		both:   true,
	},
	{
		name:   "local route",
		add:    "ip route add local 10.77.0.2 dev eth0 table local proto kernel",
		remove: "ip route del local 10.77.0.2 dev eth0 table local",
		both:   true,
	},
	{
		name:   "forwarding off",
		add:    "sysctl -qw net.ipv4.conf.docker0.forwarding=0",
		remove: "sysctl -qw net.ipv4.conf.docker0.forwarding=1",
	},
	{
		name:   "forwarding off everywhere",
		add:    "sysctl -qw net.ipv4.ip_forward=0",
		remove: "sysctl -qw net.ipv4.ip_forward=1",
		both:   true,
	},
	{
		name:   "IPsec policy",
		add:    "ip xfrm policy add src 172.17.0.2 dst 10.77.0.2 dir fwd action block",
		remove: "ip xfrm policy delete src 172.17.0.2 dst 10.77.0.2 dir fwd",
	},
}

// containerMAC is container 1's MAC address, which Docker makes of the other.
const containerMAC = "02:42:ac:11:00:02"

// hookDrop is a rule of nftables at a device.
func hookDrop(hook, dev, match string) string {
	return `nft add table netdev stop
		nft add chain netdev stop f { type filter hook ` + hook + ` device ` + dev + ` priority 0 ; }
		nft add rule netdev stop f ` + match + ` drop`
}

var ports = []rule{
	{
		name: "nft at the port", remove: "nft delete table netdev stop",
		add: hookDrop("ingress", "veth1", "ip saddr 172.17.0.2"),
	},
	{
		name: "nft at the bridge", remove: "nft delete table netdev stop",
		add: hookDrop("ingress", "docker0", "ip saddr 172.17.0.2"),
	},
	{
		name: "nft at the uplink's egress", remove: "nft delete table netdev stop",
		add: hookDrop("egress", "eth0", "ip saddr 10.77.0.1"),
	},
	{
		name: "nft at the uplink's ingress", remove: "nft delete table netdev stop",
		add: hookDrop("ingress", "eth0", "ip saddr 10.77.0.2"), receives: true,
	},
	{
		name: "nft at the port's egress", remove: "nft delete table netdev stop",
		add: hookDrop("egress", "veth1", "ip daddr 172.17.0.2"), receives: true,
	},
	{
		name: "nft in the bridge",
		add: `nft add table bridge stop
			nft add chain bridge stop f { type filter hook prerouting priority 0 ; }
			nft add rule bridge stop f iifname veth1 drop`,
		remove: "nft delete table bridge stop",
	},
	{
		name: "port disabled", both: true,
		add:    "bridge link set dev veth1 state 0",
		remove: "bridge link set dev veth1 state 3",
	},
	{
		name: "port elsewhere", receives: true,
		prepare: "ip link set dev veth1 type bridge_slave learning off",
		add:     "bridge fdb replace " + containerMAC + " dev veth2 master static",
		remove:  "bridge fdb replace " + containerMAC + " dev veth1 master static",
		tidy:    "ip link set dev veth1 type bridge_slave learning on",
	},
}

// A rule stops packets that go express at once, and they continue when it goes.
// No packet passes that was sent more than a lease after the rule was there.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]rule{"firewalls": firewalls, "sets": sets, "marks": marks, "routing": routing, "ports": ports} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
			outside := b.Outgoing("udp", 1).GoExpress()
			for _, r := range rules {
				t.Run(r.name, func(t *testing.T) { r.test(b.In(t), outside) })
			}
		})
	}
}

func (r rule) test(b *scontest.Bed, outside *scontest.Connection) {
	t := b.T
	b.Sh(lab.Device, r.prepare)
	defer b.Sh(lab.Device, r.tidy)
	outbound := scontest.SendNumbers(t, outside.Client, outside.Server, 1, time.Millisecond)
	inbound := scontest.SendNumbers(t, outside.Server, outside.Client, 1, time.Millisecond)
	outside.In(b).WaitExpress(nil)

	before := b.Status()
	b.Sh(lab.Device, r.add)
	since := time.Now()
	remove := sync.OnceFunc(func() { b.Sh(lab.Device, r.remove) })
	defer remove()
	time.Sleep(time.Until(since.Add(scontest.Lease * 3 / 2))) // sends on
	if now := b.Status(); now.Reasons["new_generation"] == before.Reasons["new_generation"] && now.Rules.Retired == before.Rules.Retired && !r.silent {
		t.Error("the change makes no decision stale")
	}
	for _, direction := range []struct {
		name    string
		numbers *scontest.Numbers
		stops   bool
	}{{"outbound", outbound, !r.receives}, {"inbound", inbound, r.both || r.receives}} {
		n := direction.numbers
		if !direction.stops {
			n.Proceed(t, 100)
			continue
		}
		late := time.Unix(0, n.Latest.Load()).Sub(since)
		t.Logf("%s: the last packet to pass was sent %v after the rule", direction.name, late)
		if late > scontest.Lease {
			t.Errorf("%s: longer than a lease", direction.name)
		}
		if sent, arrived := n.Sent.Load(), n.Arrived.Load(); sent-arrived < 10 {
			t.Errorf("%s: %d of %d packets arrived", direction.name, arrived, sent)
		}
	}

	remove()
	outbound.Proceed(t, 100)
	inbound.Proceed(t, 100)
	outside.In(b).WaitExpress(nil)
}

// A stream that a rule holds up goes on when it is gone.
func TestPolicyHoldsStream(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Incoming("tcp", 1).GoExpress()
	s := scontest.StartStream(c)
	c.WaitExpress(nil)
	b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -d 172.17.0.2 -j DROP")
	since := time.Now()
	time.Sleep(time.Until(since.Add(scontest.Lease)))
	// What was in flight may still have been read since.
	held := s.Requests.Load()
	time.Sleep(scontest.Lease / 2)
	if now := s.Requests.Load(); now > held {
		t.Errorf("%d bytes arrived %v after the rule and later", now-held, scontest.Lease)
	}
	b.Sh(lab.Device, "iptables-nft -D DOCKER-USER -d 172.17.0.2 -j DROP")
	s.Proceed(t, 64<<10)
	c.WaitExpress(nil)
	s.Stop(t)
	b.WantNoInvalid()
}

// REJECT reaches both the one who sends datagrams and the one who sends a
// stream, as without SCON.
func TestPolicyRejects(t *testing.T) {
	t.Parallel()
	for proto, tc := range map[string]struct {
		with string
		want syscall.Errno
	}{
		"udp": {"icmp-port-unreachable", syscall.ECONNREFUSED},
		"tcp": {"tcp-reset", syscall.ECONNRESET},
	} {
		t.Run(proto, func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{})
			c := b.Outgoing(proto, 1).GoExpress()
			b.Sh(lab.Device, strings.Join([]string{
				"iptables-nft -I DOCKER-USER -s 172.17.0.2 -p", proto, "-j REJECT --reject-with", tc.with}, " "))
			scontest.Eventually(t, tc.want.Error(), func() error {
				if _, err := c.Client.Write([]byte("x")); !errors.Is(err, tc.want) && !errors.Is(err, syscall.EPIPE) {
					return errors.Join(errors.New("not refused"), err)
				}
				return nil
			})
		})
	}
}
