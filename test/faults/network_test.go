package faults

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Changes of the network affect traffic as they do without SCON. Tests in
// internal/express cover uplinks that go down and up, another address and another
// uplink.

// An uplink that is deleted and created again with the same name works again; nothing
// of the old device is left.
func TestUplinkRecreated(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	for range 2 {
		c := b.Incoming("udp", 1).GoExpress()
		n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
		n.Proceed(t, 100)
		b.Sh(lab.Device, "ip link del eth0")
		b.Sh(lab.Device, fmt.Sprintf(`
			ip link add eth0 type veth peer name eth0 netns %s
			ip addr add 10.77.0.1/24 dev eth0
			ip link set eth0 up`, b.Node(lab.Edge)))
		b.Sh(lab.Edge, `
			ip addr add 10.77.0.2/24 dev eth0
			ip link set eth0 up`)
		b.Sh(lab.Device, "ip route add default via 10.77.0.2")
		n.Proceed(t, 100)
		waitOriginal(c)
		b.Outgoing("tcp", 1).GoExpress()
		if hooks := uplinkHooks(b); hooks != 2 {
			t.Errorf("%d hooks at uplinks", hooks)
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}
	b.WantNoInvalid()
}

// uplinkHooks counts the hooks at devices other than containers' ports.
func uplinkHooks(b *scontest.Bed) (n int) {
	b.T.Helper()
	for _, h := range b.Status().Hooks {
		if h.Dev == lab.Uplink {
			n++
		}
	}
	return n
}

// A gateway's former MAC address is not used any more.
func TestStaleGatewayMAC(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	edge := b.OpenWire(lab.Edge)
	old := edge.Iface.HardwareAddr
	for i := range 3 {
		waitOriginal(c)
		mac := fmt.Sprintf("02:00:00:00:01:%02d", i)
		b.Sh(lab.Edge, "ip link set eth0 address "+mac)
		b.Sh(lab.Device, "ip neigh replace 10.77.0.2 lladdr "+mac+" nud reachable dev eth0")
		settle(b)
		edge.Skip()
		n.Proceed(t, 100)
		if stale := count(edge, 100, func(f []byte) bool { return net.HardwareAddr(f[:6]).String() == old.String() }); stale > 0 {
			t.Errorf("%d packets were sent to the gateway's former address", stale)
		}
		waitOriginal(c)
		if to := c.MustFlow().NextHop; to != mac {
			t.Errorf("the next hop of express packets is %s, the gateway is %s", to, mac)
		}
		old, _ = net.ParseMAC(mac)
	}
}

// When the gateway on an uplink changes, the new one receives all packets at
// once.
func TestOtherGateway(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	c := b.Connect("udp", lab.Container(1), lab.Edge, netip.AddrPortFrom(addRemote(b), 7000)).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	// The other gateway is a second device of edge on the same wire.
	b.Sh(lab.Edge, `
		ip link add link eth0 name gw2 type macvlan mode bridge
		ip addr add 10.77.0.3/24 dev gw2
		ip link set gw2 up
		sysctl -q net.ipv4.conf.all.arp_ignore=1
		sysctl -q net.ipv4.conf.all.rp_filter=0
		sysctl -q net.ipv4.conf.gw2.rp_filter=0`)
	macs := map[string]string{
		"10.77.0.2": b.OpenWire(lab.Edge).Iface.HardwareAddr.String(),
		"10.77.0.3": b.OpenDevice(lab.Edge, "gw2").Iface.HardwareAddr.String(),
	}
	for range 2 {
		for _, gateway := range []string{"10.77.0.3", "10.77.0.2"} {
			b.Sh(lab.Device, "ip route replace default via "+gateway+" dev eth0")
			n.Proceed(t, 50)
			waitOriginal(c)
			if to := c.MustFlow().NextHop; to != macs[gateway] {
				t.Errorf("the next hop of express packets is %s, the gateway is %s", to, macs[gateway])
			}
		}
	}
	n.WantAll(t, "packets by two gateways")
	b.WantNoInvalid()
}

// addRemote gives edge an address outside the wire's network.
func addRemote(b *scontest.Bed) netip.Addr {
	b.T.Helper()
	b.Sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	return netip.MustParseAddr("10.99.0.1")
}

// A container with a new MAC address receives its packets at the new one. After a
// change of its IP address no Conentry of the old one stays in use.
func TestContainerChangesAddress(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	c := b.Incoming("udp", 1).GoExpress()
	for i := range 3 {
		b.Sh(lab.Container(1), fmt.Sprintf("ip link set eth0 address 02:00:00:00:02:%02d", i))
		b.Sh(lab.Container(1), "ping -c 1 -W 1 172.17.0.1") // it sends a packet
		c.GoExpress()
	}
	out := b.Outgoing("tcp", 1).GoExpress()
	b.Sh(lab.Container(1), `
		ip addr del 172.17.0.2/16 dev eth0
		ip addr add 172.17.0.99/16 dev eth0
		ip route replace default via 172.17.0.1`)
	_, _ = out.Server.Write([]byte("lost as it is"))
	echo := openPairs(b, 1, 3)
	scontest.Eventually(t, "connections from the new address have Conentries", func() error {
		echo.pass(t)
		return echo.want(b, 3, 3)
	})
	b.WantNoInvalid()
}

// Deleting a bridge under traffic removes its hooks and Conentries; ports of
// its successor are hooked.
func TestBridgeDeleted(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	for range 2 {
		n.Proceed(t, 100)
		b.Sh(lab.Device, "ip link del docker0")
		scontest.Eventually(t, "the ports are unhooked", func() error {
			if s := b.Status(); len(s.Containers)+s.Totals.Entries > 0 {
				return fmt.Errorf("%+v", s.Containers)
			}
			return nil
		})
		b.Sh(lab.Device, `
			ip link add docker0 address 02:42:ac:11:00:01 type bridge
			ip addr add 172.17.0.1/16 dev docker0
			ip link set docker0 up
			ip link set veth1 master docker0
			ip link set veth2 master docker0`)
		n.Proceed(t, 100)
		waitOriginal(c)
		b.Outgoing("tcp", 2).GoExpress()
	}
	b.WantNoInvalid()
}

// A port that moves to another bridge, and back, is handled as a port of the new bridge
// at once.
func TestPortMoves(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	b.Sh(lab.Device, `
		ip link add br1 type bridge
		ip link set br1 up`)
	for range 3 {
		n.Proceed(t, 100)
		b.Sh(lab.Device, "ip link set veth1 master br1") // which has no other port
		settle(b)
		time.Sleep(50 * time.Millisecond) // packets in flight
		passed := n.Arrived.Load()
		time.Sleep(500 * time.Millisecond)
		if now := n.Arrived.Load(); now != passed {
			t.Errorf("%d packets left by a bridge without another port", now-passed)
		}
		b.Sh(lab.Device, "ip link set veth1 master docker0")
		n.Proceed(t, 100)
		waitOriginal(c)
	}
	b.WantNoInvalid()
}

// settle waits until the daemon has processed all earlier changes.
func settle(b *scontest.Bed) {
	b.T.Helper()
	before := b.Status().Generation
	b.Sh(lab.Device, `
		ip rule add pref 20000 table 254
		ip rule del pref 20000`) // which concern everything
	scontest.Eventually(b.T, "a new generation", func() error {
		if now := b.Status().Generation; now < before+2 {
			return fmt.Errorf("generation %d, was %d", now, before)
		}
		return nil
	})
}

// count counts the next frames that match.
func count(w *scontest.Wire, frames int, like func([]byte) bool) (n int) {
	seen := 0
	w.Receive(func(f []byte) bool {
		if len(f) < scontest.UDPAt || binary.BigEndian.Uint16(f[12:]) != 0x0800 {
			return false
		}
		if like(f) {
			n++
		}
		seen++
		return seen == frames
	})
	return n
}
