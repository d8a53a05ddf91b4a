package daemon_test

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab"
)

// lease is how long a change of policy that nothing announces may live: a
// second and the jiffies in which it begins and ends.
const lease = time.Second + 20*time.Millisecond

// rule is a change of policy that stops what container 1 sends.
type rule struct {
	name        string
	add, remove string // commands in device
	// both tells that what container 1 receives stops as well.
	both bool
	// silent tells that nobody announces it.
	silent bool
}

var rules = []rule{
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
		name:   "policy routing",
		add:    "ip rule add from 172.17.0.2 blackhole",
		remove: "ip rule del from 172.17.0.2 blackhole",
		both:   true, // nothing comes from where nothing leads to
	},
	{
		name:   "forwarding off",
		add:    "sysctl -qw net.ipv4.conf.docker0.forwarding=0",
		remove: "sysctl -qw net.ipv4.conf.docker0.forwarding=1",
	},
	{
		name:   "IPsec policy",
		add:    "ip xfrm policy add src 172.17.0.2 dst 10.77.0.2 dir fwd action block",
		remove: "ip xfrm policy delete src 172.17.0.2 dst 10.77.0.2 dir fwd",
	},
}

// A rule stops packets that go express at once, and they continue when it goes.
// No packet passes that was sent more than a lease after the rule was there.
func TestPolicy(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	outside := b.outgoing("udp", 1).goExpress()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			b := b.in(t)
			outbound := sendNumbers(t, outside.client, outside.server, 1, time.Millisecond)
			inbound := sendNumbers(t, outside.server, outside.client, 1, time.Millisecond)
			outside.in(b).waitExpress(nil)

			generation := b.status().Generation
			b.sh(lab.Device, r.add)
			since := time.Now()
			remove := sync.OnceFunc(func() { b.sh(lab.Device, r.remove) })
			defer remove()
			time.Sleep(time.Until(since.Add(lease * 3 / 2))) // sends on
			if now := b.status().Generation; now == generation && !r.silent {
				t.Error("the change makes no decision stale")
			}
			stopped := map[string]*numbers{"outbound": outbound}
			if r.both {
				stopped["inbound"] = inbound
			} else {
				inbound.proceed(t, 100)
			}
			for name, n := range stopped {
				late := time.Unix(0, n.latest.Load()).Sub(since)
				t.Logf("%s: the last packet to pass was sent %v after the rule", name, late)
				if late > lease {
					t.Errorf("%s: longer than a lease", name)
				}
				if sent, arrived := n.sent.Load(), n.arrived.Load(); sent-arrived < 100 {
					t.Errorf("%s: %d of %d packets arrived", name, arrived, sent)
				}
			}

			remove()
			outbound.proceed(t, 100)
			outside.in(b).waitExpress(nil)
		})
	}
}

// in is the connection for a subtest.
func (c *connection) in(b *bed) *connection {
	sub := *c
	sub.b = b
	return &sub
}

// A stream that a rule holds up goes on when it is gone.
func TestPolicyHoldsStream(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.incoming("tcp", 1).goExpress()
	s := startStream(c)
	c.waitExpress(nil)
	b.sh(lab.Device, "iptables-nft -I DOCKER-USER -d 172.17.0.2 -j DROP")
	since := time.Now()
	time.Sleep(time.Until(since.Add(lease)))
	// What was on its way may still have been read since.
	held := s.requests.Load()
	time.Sleep(lease / 2)
	if now := s.requests.Load(); now > held {
		t.Errorf("%d bytes arrived %v after the rule and later", now-held, lease)
	}
	b.sh(lab.Device, "iptables-nft -D DOCKER-USER -d 172.17.0.2 -j DROP")
	s.proceed(t, 64<<10)
	c.waitExpress(nil)
	s.stop(t)
	b.wantNoInvalid()
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
			b := newExpress(t, layout{})
			c := b.outgoing(proto, 1).goExpress()
			b.sh(lab.Device, strings.Join([]string{
				"iptables-nft -I DOCKER-USER -s 172.17.0.2 -p", proto, "-j REJECT --reject-with", tc.with}, " "))
			eventually(t, tc.want.Error(), func() error {
				if _, err := c.client.Write([]byte("x")); !errors.Is(err, tc.want) && !errors.Is(err, syscall.EPIPE) {
					return errors.Join(errors.New("not refused"), err)
				}
				return nil
			})
		})
	}
}
