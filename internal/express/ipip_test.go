package express_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// What is decided about the packets of a tunnel of IPIP itself applies to connections that
// skip its device.
func TestIPIPOuter(t *testing.T) {
	t.Parallel()
	t.Run("to its remote end", func(t *testing.T) {
		t.Parallel()
		needKind(t, lab.UplinkIPIP)
		b := scontest.NewExpress(t, scontest.Layout{Uplink: lab.UplinkIPIP})
		const change = "ip tunnel change up0 mode ipip local 10.77.0.1 remote "
		testIPIPOuter(b, change+"10.77.0.9", change+lab.EdgeAddr.String())
	})
	t.Run("by route", func(t *testing.T) {
		t.Parallel()
		b := scontest.New(t, scontest.Layout{})
		layByRoute(b)
		b.Up()
		const change = "ip route replace 10.78.0.2/32 dev up0 onlink via "
		testIPIPOuter(b, change+"10.77.0.9", change+lab.EdgeAddr.String())
	})
}

// testIPIPOuter has commands that give the tunnel another remote end, and the one that it had.
func testIPIPOuter(b *scontest.Bed, other, same string) {
	t := b.T
	awaitSecond(b, true)
	b.Sh(lab.Device, `
		nft add table ip outer
		nft add chain ip outer out { type filter hook output priority 0 ; }
		nft add chain ip outer in { type filter hook input priority 0 ; }`)
	c := overSecond(b, "udp", true)["IPv4 outgoing udp"]
	for what, commands := range map[string][2]string{
		"a rule for what is sent":     {"nft add rule ip outer out meta l4proto 4 drop", "nft flush chain ip outer out"},
		"a rule for what is received": {"nft add rule ip outer in ip protocol 4 drop", "nft flush chain ip outer in"},
		"another remote end":          {other, same},
	} {
		skipsSecond(c.GoExpress())
		b.Sh(lab.Device, commands[0])
		silence := func() error {
			for _, e := range c.Ends() {
				if isLost(t, e[0], e[1]) {
					return nil
				}
			}
			return errors.New("packets arrive in both directions")
		}
		scontest.Eventually(t, "packets are lost: "+what, silence)
		for range 5 {
			if err := silence(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		b.Sh(lab.Device, commands[1])
		scontest.Eventually(t, "packets arrive again after "+what, func() error {
			for _, e := range c.Ends() {
				if isLost(t, e[0], e[1]) {
					return errors.New("one is lost")
				}
			}
			return nil
		})
	}

	// What judges the tunnel's own packets one by one sees all of them.
	for what, commands := range map[string][2]string{
		"a limit": {"nft add rule ip outer in meta l4proto 4 limit rate 9999/second accept", "nft flush chain ip outer in"},
		"a queue": {"tc qdisc add dev up0 root pfifo", "tc qdisc del dev up0 root"},
	} {
		skipsSecond(c.GoExpress())
		b.Sh(lab.Device, commands[0])
		scontest.Eventually(t, "packets go by the device: "+what, func() error {
			before := linkOf(b, lab.Device, lab.Second).Attrs().Statistics
			c.MustPing(10)
			after := linkOf(b, lab.Device, lab.Second).Attrs().Statistics
			if in, out := after.RxPackets-before.RxPackets, after.TxPackets-before.TxPackets; in < 10 || out < 10 {
				return fmt.Errorf("of 10 packets each way %d came by it, and %d left", in, out)
			}
			return nil
		})
		b.Sh(lab.Device, commands[1])
	}
}

// Pods as Calico wires them: each has a route to its device, and those of other nodes one to
// their node, by a tunnel without a remote end.
func TestIPIPRouted(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 2, Offload: true})
	layByRoute(b)
	route(b)
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, "ip link set eth0 mtu 1520") // room for the outer header
		b.Sh(node, "ip link set up0 mtu 1500")
	}
	b.Sh(lab.Edge, "ip route add 172.18.0.9/32 via 10.77.0.1 dev up0 onlink")
	b.Up()
	awaitSecond(b, true)
	for _, proto := range []string{"tcp", "udp"} {
		c := b.Connect(proto, lab.Container(2), lab.Edge, netip.AddrPortFrom(lab.SecondEdge, 0))
		c.ExchangeExpress(2 << 20)
		if f := c.MustFlow(); f.Oif != lab.Second || f.Overlay != lab.Uplink {
			t.Errorf("%s goes out of %q, skipped by %q", proto, f.Oif, f.Overlay)
		}
		skipsSecond(c)
	}
}

// isLost sends a datagram and reports whether it does not arrive. What has arrived before is
// read first.
func isLost(t *testing.T, from, to net.Conn) bool {
	t.Helper()
	buf := make([]byte, 1500)
	for err := error(nil); err == nil; {
		_ = to.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		_, err = to.Read(buf)
	}
	if _, err := from.Write([]byte("x")); err != nil && !scontest.Refused(err) {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := to.Read(buf)
	return errors.Is(err, os.ErrDeadlineExceeded)
}
