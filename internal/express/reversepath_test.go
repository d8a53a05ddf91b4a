package express_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/composer"
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

// filterReversePath switches a device's filter of reverse paths on, without a sysctl.
func filterReversePath(b *scontest.Bed, dev string) {
	const conf, rpFilter = 1, 8 // IFLA_INET_CONF, IPV4_DEVCONF_RP_FILTER
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	spec.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddRtAttr(conf|unix.NLA_F_NESTED, nil).AddRtAttr(rpFilter, nl.Uint32Attr(1))
	setLink(b, unix.AF_UNSPEC, unix.RTM_SETLINK, dev, spec)
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
	for name, switchOn := range map[string]func(){
		"by sysctl":  func() { b.Sh(lab.Device, "sysctl -qw net.ipv4.conf.eth1.rp_filter=1") },
		"by netlink": func() { filterReversePath(b, "eth1") },
	} {
		t.Log(name)
		wantLease(t, c, composer.BoundByConntrack, 40*time.Second)
		switchOn()
		waitLost(t, c.Server, c.Client)
		b.Sh(lab.Device, "sysctl -qw net.ipv4.conf.eth1.rp_filter=0")
		c.GoExpress()
	}
	b.WantNoInvalid()
}
