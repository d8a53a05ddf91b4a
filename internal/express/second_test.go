package express_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A container that gets a second network with a better default route, as by `docker network
// connect`, sends packets of its established connections there. They arrive, and explain
// names the half that goes regular, and why. A new connection goes express by that network.
func TestSecondNetworkOfContainer(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	tcp, udp := b.Outgoing("tcp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, `
		ip link add docker1 type bridge
		ip link set docker1 up
		ip addr add 172.19.0.1/16 dev docker1
		ip link add second type veth peer name eth1 netns `+b.Node(lab.Container(1))+`
		ip link set second master docker1 up
		iptables-nft -t nat -A POSTROUTING -s 172.19.0.0/16 ! -o docker1 -j MASQUERADE
		iptables-nft -I DOCKER-USER -i docker1 -j ACCEPT
		iptables-nft -I DOCKER-USER -o docker1 -m conntrack --ctstate ESTABLISHED -j ACCEPT`)
	b.Sh(lab.Container(1), `
		ip addr add 172.19.0.2/16 dev eth1
		ip link set eth1 up
		ip route replace default via 172.19.0.1 dev eth1`)
	for _, c := range []*scontest.Connection{tcp, udp} {
		subject := fmt.Sprintf("%s:172.17.0.2:%d", c.MustFlow().Proto, c.Port())
		scontest.Eventually(t, "explain names the half of "+subject, func() error {
			c.MustPing(10)
			x, err := b.Daemon.Explain(subject)
			if err != nil {
				return err
			}
			for _, f := range x.Findings {
				if f.Level == "warn" && strings.Contains(f.What, fmt.Sprintf("packets from 172.17.0.2:%d enter at second, where they go regular", c.Port())) &&
					strings.Contains(f.Why, "the connection began by "+lab.Port(1)+": its container routes these packets by another of its networks now") {
					return nil
				}
			}
			return fmt.Errorf("findings %+v", x.Findings)
		})
		before := c.MustFlow().ExpressPackets
		const pings = 200
		c.MustPing(pings)
		if after := c.MustFlow().ExpressPackets; after[1]-before[1] < pings/2 {
			t.Errorf("%s: of %d answers %d went express", subject, pings, after[1]-before[1])
		}
	}
	by := b.Outgoing("udp", 1).GoExpress()
	if f := by.MustFlow(); f.Orig.Src != "172.19.0.2" {
		t.Errorf("a new connection comes from %s", f.Orig.Src)
	}
	b.WantNoInvalid()
}
