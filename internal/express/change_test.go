package express_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Traffic follows changes of the outgoing path, as without SCON.

// Traffic continues when an uplink that was down is up again.
func TestUplinkDown(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	// Masqueraded connections would end with the device.
	f := b.TrafficOver(b.Incoming("tcp", 1), b.Incoming("udp", 1))
	f.WaitExpress()
	for range 2 {
		b.Sh(lab.Device, "ip link set eth0 down")
		time.Sleep(50 * time.Millisecond)
		b.Sh(lab.Device, `
			ip link set eth0 up
			ip route replace default via 10.77.0.2`)
		f.Proceed()
		f.WaitExpress()
	}
	f.Stream.Stop(t)
	b.WantNoInvalid()
}

// Packets follow a neighbour's new MAC address.
func TestNeighbourMoves(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	f.WaitExpress()
	for i, learn := range []struct{ node, commands string }{
		{lab.Device, "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:10 nud reachable dev eth0"}, // a static entry
		{lab.Edge, "ip neigh flush dev eth0"},                                                      // it asks, and is heard
	} {
		mac := fmt.Sprintf("02:00:00:00:00:1%d", i)
		b.Sh(lab.Edge, "ip link set eth0 address "+mac)
		b.Sh(learn.node, learn.commands)
		f.Proceed()
		f.WaitExpress()
		if to := f.Datagrams.MustFlow().NextHop; to != mac {
			t.Errorf("express to %s, the neighbour is %s", to, mac)
		}
	}
	f.Stream.Stop(t)
	b.WantNoInvalid()
}

// They do so if nobody says that it has moved, as soon as the kernel finds it: what goes
// express keeps it from that for no longer than it believes a neighbour.
func TestNeighbourMovesSilently(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, "sysctl -qw net.ipv4.neigh.eth0.base_reachable_time_ms=2000 net.ipv4.neigh.eth0.delay_first_probe_time=1")
	b.Up()
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, 10*time.Millisecond)
	c.WaitExpressOriginal()
	b.Sh(lab.Edge, "ip link set eth0 address 02:00:00:00:00:10")
	since := time.Now()
	time.Sleep(500 * time.Millisecond) // longer than for what is in flight
	n.Proceed(t, 1)
	t.Logf("after %v", time.Since(since))
	c.WaitExpressOriginal()
	if to := c.MustFlow().NextHop; to != "02:00:00:00:00:10" {
		t.Errorf("express to %s", to)
	}
}

// Connections end with the address that they are translated to; packets leave
// with the new one.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	for _, addr := range []string{"10.77.0.9", "10.77.0.1"} {
		b.Sh(lab.Device, `
			ip addr flush dev eth0
			ip addr add `+addr+`/24 dev eth0
			ip route replace default via 10.77.0.2`)
		c.ArriveFrom(netip.MustParseAddr(addr))
		c.GoExpress()
		if to := c.MustFlow().Reply.Dst; to != addr {
			t.Errorf("translated to %s, the address is %s", to, addr)
		}
	}
	b.WantNoInvalid()
}

// A new route by another uplink, which has come up since, is followed.
func TestSecondUplink(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.99.0.1:7000")).GoExpress()
	in := b.Incoming("tcp", 1).GoExpress()
	b.Sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up`)
	b.Sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up`)
	for _, route := range []struct {
		dev, via string
		addr     netip.Addr
	}{
		{"eth1", "10.78.0.2", netip.MustParseAddr("10.78.0.1")},
		{"eth0", "10.77.0.2", lab.DeviceAddr},
	} {
		b.Sh(lab.Device, "ip route replace default via "+route.via+" dev "+route.dev)
		c.ArriveFrom(route.addr)
		c.GoExpress()
		if f := c.MustFlow(); f.Oif != route.dev {
			t.Errorf("express out of %s, the route is out of %s", f.Oif, route.dev)
		}
		in.GoExpress()
	}
	b.WantNoInvalid()
}
