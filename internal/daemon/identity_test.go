package daemon_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab"
)

// forge are packets that look like another container's, or like a connection's
// but for one thing. They meet what they would meet without SCON.
func TestForgedPackets(t *testing.T) {
	t.Parallel()
	const count = 20
	b := newExpress(t, layout{containers: 2})
	c := b.outgoing("udp", 1).goExpress()
	c.mustPing(5)
	wires := map[int]*wire{1: b.openWire(lab.Container(1)), 2: b.openWire(lab.Container(2))}
	strange := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, tc := range []struct {
		name string
		from int // container
		mac  net.HardwareAddr
		why  string // its port counts
	}{
		{"another container's address", 2, wires[2].iface.HardwareAddr, "no_entry"},
		{"another container's MAC address, too", 2, wires[1].iface.HardwareAddr, "no_entry"},
		{"another MAC address than before", 1, strange, "identity"},
	} {
		forged := frame(b.bridgeMAC(), tc.mac,
			netip.MustParseAddrPort(c.client.LocalAddr().String()), netip.MustParseAddrPort(c.client.RemoteAddr().String()), "forged")
		t.Run(tc.name, func(t *testing.T) {
			b := b.in(t)
			c := c.in(b).goExpress()
			before, _ := b.container(tc.from)
			express := c.mustFlow().ExpressPackets
			for range count {
				wires[tc.from].send(forged)
				if got, err := readPlain(c.server); err != nil || got != "forged" {
					t.Fatalf("read %q, %v; the plain way lets it pass", got, err)
				}
			}
			after, _ := b.container(tc.from)
			if got := c.mustFlow().ExpressPackets; got != express {
				t.Errorf("express packets %v, before %v", got, express)
			}
			if got := after.Reasons[tc.why] - before.Reasons[tc.why]; got < count-1 {
				t.Errorf("reasons %v, before %v", after.Reasons, before.Reasons)
			}

			// A rule of the user's against forging.
			b.sh(lab.Device, `
				nft add table bridge guard
				nft add chain bridge guard prerouting { type filter hook prerouting priority 0 ; }
				nft add rule bridge guard prerouting iifname `+lab.Port(tc.from)+` ether saddr `+tc.mac.String()+` ip saddr 172.17.0.2 drop`)
			for range count {
				wires[tc.from].send(forged)
			}
			_ = c.server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := c.server.Read(make([]byte, 100)); err == nil {
				t.Errorf("%d bytes passed the rule", n)
			}
			b.sh(lab.Device, "nft delete table bridge guard")
			c.goExpress()
		})
	}
}

// readPlain reads a datagram.
func readPlain(c net.Conn) (string, error) {
	buf := make([]byte, 1500)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
