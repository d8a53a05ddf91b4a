package express_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// waitLost waits until no packet arrives any more, for longer than a lease: then
// none is in flight, either.
func waitLost(t *testing.T, from, to net.Conn) {
	t.Helper()
	scontest.Eventually(t, "packets are dropped", func() error {
		for range 12 {
			if _, err := from.Write([]byte("x")); err != nil {
				return err
			}
			_ = to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := to.Read(make([]byte, 10)); err == nil {
				return errors.New("a packet arrives")
			}
		}
		return nil
	})
}

// Replies that enter by another uplink than requests leave by are express, until
// that uplink's filter of reverse paths is switched on, which is not announced:
// then they are dropped, as the regular path drops them.
func TestReversePath(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up
		sysctl -qw net.ipv4.conf.all.rp_filter=0
		sysctl -qw net.ipv4.conf.eth1.rp_filter=0
		ip route add 10.99.0.1/32 via 10.77.0.2 dev eth0`)
	b.Sh(lab.Edge, `
		sysctl -qw net.ipv4.conf.all.rp_filter=0
		sysctl -qw net.ipv4.conf.eth0.rp_filter=0
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up
		ip addr add 10.99.0.1/32 dev lo
		ip rule add from 10.99.0.1 table 77
		ip route add default via 10.78.0.1 dev eth1 table 77`)
	b.Up()
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.99.0.1:0")).GoExpress()
	for range 2 {
		b.Sh(lab.Device, "sysctl -qw net.ipv4.conf.eth1.rp_filter=1")
		waitLost(t, c.Server, c.Client)
		b.Sh(lab.Device, "sysctl -qw net.ipv4.conf.eth1.rp_filter=0")
		c.GoExpress()
	}
	b.WantNoInvalid()
}
