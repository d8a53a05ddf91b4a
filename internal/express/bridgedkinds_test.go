package express_test

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// bridgedKinds are kinds of ports by which a bridge leads out, besides the lab's wire.
var bridgedKinds = map[string]uplink{
	"vlan":                {lay: vlanOfWire},
	"bond, active-backup": uplinks["bond, active-backup"],
	"bond, 802.3ad":       uplinks["bond, 802.3ad"],
	"vlan of a bond":      uplinks["vlan of a bond"],
}

func vlanOfWire(b *scontest.Bed) {
	b.T.Helper()
	need(b, "ip link add link eth0 name up0 type vlan id 5", "ip link del up0")
	layPort(b, "p1")
	for _, node := range []string{lab.Device, lab.Edge} {
		b.Sh(node, `
			ip link set p1 up
			ip link add link p1 name up0 type vlan id 5`)
	}
}

// A VLAN, a bond, and a VLAN of a bond lead out of the containers' bridge as a card does:
// all bytes go express, and those of a connection take another port of the bond when its
// active one changes.
func TestBridgedOutKinds(t *testing.T) {
	t.Parallel()
	for name, kind := range bridgedKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBridgedBy(t, kind)
			for _, proto := range []string{"tcp", "udp"} {
				for where, connect := range map[string]func() *scontest.Connection{
					"out": func() *scontest.Connection { return outward(b, proto) },
					"in":  func() *scontest.Connection { return inward(b, proto) },
					"out over IPv6": func() *scontest.Connection {
						return b.Connect(proto, lab.Container(1), lab.Edge, netip.AddrPortFrom(neighbour6, 700))
					},
				} {
					c := connect()
					c.ExchangeExpress(256 << 10)
					if f := c.MustFlow(); f.Path != api.PathBridged || f.Oif != "up0" {
						t.Errorf("%s %s: %+v", proto, where, f)
					}
					c.Close()
				}
			}
			if kind.change != nil {
				s := scontest.StartStream(outward(b, "tcp"))
				s.C.WaitExpress(nil)
				kind.change(b)
				s.Proceed(t, 256<<10)
				s.C.WaitExpress(nil)
				s.Stop(t)
			}
			b.WantNoInvalid()
		})
	}
}

// newBridgedBy is newBridged with a device of that kind, up0, in the wire's place.
func newBridgedBy(t *testing.T, kind uplink) *scontest.Bed {
	t.Helper()
	b := scontest.New(t, scontest.Layout{IPv6: true, Config: func(c *config.Config) { c.Uplinks = config.Devices{"up0"} }})
	kind.lay(b)
	b.Sh(lab.Device, `
		ip addr flush dev eth0
		ip link set up0 master docker0
		ip link set up0 up`)
	b.Sh(lab.Edge, `
		ip addr flush dev eth0
		ip link set up0 up
		ip addr add 172.17.0.99/16 dev up0
		ip addr add fd00:17::99/64 dev up0 nodad`)
	b.Up()
	b.WaitHooked(1)
	settled(b, 1)
	return b
}
