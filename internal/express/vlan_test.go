package express_test

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// An uplink that is a VLAN gets express packets with its tag.
func TestUplinkVLAN(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	need(b, "ip link add link eth0 name probe type vlan id 11", "ip link del probe")
	b.Sh(lab.Edge, `
		ip addr add 10.99.0.1/32 dev lo
		ip link add link eth0 name eth0.10 type vlan id 10
		ip addr add 10.79.0.2/24 dev eth0.10
		ip link set eth0.10 up`)
	b.Sh(lab.Device, `
		ip link add link eth0 name eth0.10 type vlan id 10
		ip addr add 10.79.0.1/24 dev eth0.10
		ip link set eth0.10 up
		ip route add 10.99.0.1 via 10.79.0.2`)
	for _, proto := range []string{"udp", "tcp"} {
		c := b.Connect(proto, lab.Container(1), lab.Edge, netip.MustParseAddrPort("10.99.0.1:7000")).GoExpress()
		if f := c.MustFlow(); f.Oif != "eth0.10" {
			t.Errorf("express out of %s", f.Oif)
		}
		c.MustPing(50)
	}
	b.Outgoing("udp", 1).GoExpress() // without a tag
	b.WantNoInvalid()
}

// A bridge that filters VLANs forwards what it did before: a port that leaves
// the VLAN of the bridge loses its connections, and gets them back.
func TestBridgeVLAN(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	need(b, "ip link add probe type bridge vlan_filtering 1", "ip link del probe")
	b.Sh(lab.Device, "ip link set docker0 type bridge vlan_filtering 1")
	c, other := b.Outgoing("udp", 1).GoExpress(), b.Outgoing("udp", 2).GoExpress()
	b.Sh(lab.Device, `
		bridge vlan add dev veth1 vid 20 pvid untagged
		bridge vlan del dev veth1 vid 1`)
	if _, err := c.Client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	other.GoExpress()
	wantNothing(c)
	b.Sh(lab.Device, `
		bridge vlan add dev docker0 vid 20 self pvid untagged
		bridge vlan add dev veth2 vid 20 pvid untagged`)
	c.GoExpress()
	other.GoExpress()
	b.WantNoInvalid()
}
