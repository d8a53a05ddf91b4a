package express_test

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Where the uplink is a bridge whose packets pass iptables, conntrack translates what comes in
// before SCON's hook sees it: no slot is found by it. Connections that begin with the addresses
// and ports of one that has just ended are new ones for conntrack nevertheless.
func TestShortTranslatedInBridge(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Config: func(c *config.Config) {
		c.Bridges, c.Uplinks = config.Devices{lab.Bridge}, config.Devices{lab.Uplink}
	}})
	b.Sh(lab.Device, `
		ip addr flush dev eth0
		ip link set eth0 down
		ip link set eth0 name under0
		ip link add eth0 type bridge
		ip link set under0 master eth0
		ip link set under0 up
		ip link set eth0 up
		ip addr add 10.77.0.1/24 dev eth0
		sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.netfilter.nf_conntrack_tcp_be_liberal=1
		nft add counter ip invalid new
		nft add rule ip invalid forward tcp dport 80 ct state new counter name new`)
	b.Up()
	scontest.Eventually(t, "short connections go express", func() error {
		c := b.Outgoing("tcp", 1)
		c.MustPing(1)
		finish(c)
		return wantExpress(b, 3)
	})
	p := lab.Publications(1)[0]
	wantNewEach(b, 3, func() *scontest.Connection {
		return b.ConnectTo("tcp", lab.Edge, lab.Container(1), netip.AddrPortFrom(lab.DeviceAddr, p.Device), p.Container, 40000)
	})
}
