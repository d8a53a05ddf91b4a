package daemon_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab"
)

// Traffic follows what happens to the way out, as without SCON.

// An uplink that was down carries on when it is up.
func TestUplinkDown(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	// What is masqueraded would end with the device.
	f := b.trafficOver(b.incoming("tcp", 1), b.incoming("udp", 1))
	f.waitExpress()
	for range 2 {
		b.sh(lab.Device, "ip link set eth0 down")
		time.Sleep(50 * time.Millisecond)
		b.sh(lab.Device, `
			ip link set eth0 up
			ip route replace default via 10.77.0.2`)
		f.proceed()
		f.waitExpress()
	}
	f.stream.stop(t)
	b.wantNoInvalid()
}

// A neighbour with a new MAC address gets its packets there.
func TestNeighbourMoves(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	f := b.startTraffic()
	f.waitExpress()
	for i, learn := range []struct{ node, commands string }{
		{lab.Device, "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:10 nud reachable dev eth0"}, // somebody says so
		{lab.Edge, "ip neigh flush dev eth0"},                                                      // it asks, and is heard
	} {
		mac := fmt.Sprintf("02:00:00:00:00:1%d", i)
		b.sh(lab.Edge, "ip link set eth0 address "+mac)
		b.sh(learn.node, learn.commands)
		f.proceed()
		f.waitExpress()
		if hop := f.datagrams.mustFlow().NextHop; hop != mac {
			t.Errorf("express to %s, the neighbour is %s", hop, mac)
		}
	}
	f.stream.stop(t)
	b.wantNoInvalid()
}

// arriveFrom sends from the client until a datagram arrives from an address, and
// answers it.
func (c *connection) arriveFrom(want netip.Addr) {
	c.b.t.Helper()
	server := c.server.(*answering)
	buf := make([]byte, 1500)
	eventually(c.b.t, "packets arrive from "+want.String(), func() error {
		if _, err := c.client.Write([]byte("x")); err != nil {
			return err
		}
		_ = server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, from, err := server.ReadFromUDPAddrPort(buf)
		if err == nil && from.Addr() != want {
			err = fmt.Errorf("one is from %v", from)
		}
		server.peer = from
		return err
	})
	for err := error(nil); err == nil; { // what was under way
		_ = server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = server.Read(buf)
	}
}

// An address that goes takes the connections along that are translated to it;
// packets leave with the new one.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1).goExpress()
	for _, addr := range []string{"10.77.0.9", "10.77.0.1"} {
		b.sh(lab.Device, `
			ip addr flush dev eth0
			ip addr add `+addr+`/24 dev eth0
			ip route replace default via 10.77.0.2`)
		c.arriveFrom(netip.MustParseAddr(addr))
		c.goExpress()
		if to := c.mustFlow().Reply.Dst; to != addr {
			t.Errorf("translated to %s, the address is %s", to, addr)
		}
	}
	b.wantNoInvalid()
}

// A route that leads out of another uplink, which came up live, is followed.
func TestSecondUplink(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	b.sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	c := b.connect("udp", lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.99.0.1:7000")).goExpress()
	in := b.incoming("tcp", 1).goExpress()
	b.sh(lab.Device, `
		ip link add eth1 type veth peer name eth1 netns `+b.Node(lab.Edge)+`
		ip addr add 10.78.0.1/24 dev eth1
		ip link set eth1 up`)
	b.sh(lab.Edge, `
		ip addr add 10.78.0.2/24 dev eth1
		ip link set eth1 up`)
	for _, way := range []struct {
		dev, hop string
		addr     netip.Addr
	}{
		{"eth1", "10.78.0.2", netip.MustParseAddr("10.78.0.1")},
		{"eth0", "10.77.0.2", lab.DeviceAddr},
	} {
		b.sh(lab.Device, "ip route replace default via "+way.hop+" dev "+way.dev)
		c.arriveFrom(way.addr)
		c.goExpress()
		if f := c.mustFlow(); f.Oif != way.dev {
			t.Errorf("express out of %s, the route is out of %s", f.Oif, way.dev)
		}
		in.goExpress()
	}
	b.wantNoInvalid()
}
