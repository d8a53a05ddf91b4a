package express_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// forge are packets that imitate another container's, or like a connection's
// except for one field. They are treated as without SCON.
func TestForgedPackets(t *testing.T) {
	t.Parallel()
	const count = 20
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	c := b.Outgoing("udp", 1).GoExpress()
	c.MustPing(5)
	wires := map[int]*scontest.Wire{1: b.OpenWire(lab.Container(1)), 2: b.OpenWire(lab.Container(2))}
	strange := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, tc := range []struct {
		name string
		from int // container
		mac  net.HardwareAddr
		why  string // its port counts
	}{
		{"another container's address", 2, wires[2].Iface.HardwareAddr, "no_entry"},
		{"another container's MAC address, too", 2, wires[1].Iface.HardwareAddr, "no_entry"},
		{"another MAC address than before", 1, strange, "identity"},
	} {
		forged := scontest.Frame(b.BridgeMAC(), tc.mac,
			netip.MustParseAddrPort(c.Client.LocalAddr().String()), netip.MustParseAddrPort(c.Client.RemoteAddr().String()), "forged")
		t.Run(tc.name, func(t *testing.T) {
			b := b.In(t)
			c := c.In(b).GoExpress()
			before, _ := b.Container(tc.from)
			express := c.MustFlow().ExpressPackets
			for range count {
				wires[tc.from].Send(forged)
				if got, err := scontest.ReadDatagram(c.Server); err != nil || got != "forged" {
					t.Fatalf("read %q, %v; the regular path lets it pass", got, err)
				}
			}
			after, _ := b.Container(tc.from)
			if got := c.MustFlow().ExpressPackets; got != express {
				t.Errorf("express packets %v, before %v", got, express)
			}
			if got := after.Reasons[tc.why] - before.Reasons[tc.why]; got < count-1 {
				t.Errorf("reasons %v, before %v", after.Reasons, before.Reasons)
			}

			// A rule of the user's against forging.
			b.Sh(lab.Device, `
				nft add table bridge guard
				nft add chain bridge guard prerouting { type filter hook prerouting priority 0 ; }
				nft add rule bridge guard prerouting iifname `+lab.Port(tc.from)+` ether saddr `+tc.mac.String()+` ip saddr 172.17.0.2 drop`)
			for range count {
				wires[tc.from].Send(forged)
			}
			_ = c.Server.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := c.Server.Read(make([]byte, 100)); err == nil {
				t.Errorf("%d bytes passed the rule", n)
			}
			b.Sh(lab.Device, "nft delete table bridge guard")
			c.GoExpress()
		})
	}
}
