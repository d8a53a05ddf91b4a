package express_test

import (
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Where IP sees containers by a VLAN on their bridge, they go express as
// without the VLAN.
func TestStackedOnBridge(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 1})
	need(b, "ip link add link eth0 name probe type vlan id 11", "ip link del probe")
	need(b, "ip link add probe type bridge vlan_filtering 1", "ip link del probe")
	b.Sh(lab.Device, `
		iptables-nft -I DOCKER-USER -j ACCEPT
		ip link set docker0 type bridge vlan_filtering 1
		bridge vlan add dev veth1 vid 20 pvid untagged
		bridge vlan add dev docker0 vid 20 self
		ip link add link docker0 name docker0.20 type vlan id 20
		ip link set docker0.20 up
		ip addr del 172.17.0.1/16 dev docker0
		ip addr add 172.17.0.1/16 dev docker0.20`)
	b.Up()
	b.WaitHooked(1)
	b.Outgoing("udp", 1).GoExpress()
	b.Outgoing("tcp", 1).GoExpress()
}
