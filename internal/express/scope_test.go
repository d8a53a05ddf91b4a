package express_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A change makes those decisions stale that it can concern, and no others.
func TestScope(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 3})
	b.Sh(lab.Edge, "ip addr add 10.99.0.1/32 dev lo")
	first, second := b.Outgoing("udp", 1), b.Outgoing("udp", 2)
	remote := b.Connect("udp", lab.Container(3), lab.Edge, netip.MustParseAddrPort("10.99.0.1:7000"))
	all := []*scontest.Connection{first, second, remote}

	stale := func() uint64 { return b.Status().Reasons["new_generation"] }
	of, _ := b.Container(2)
	port := of.Dev
	addr, mac, gateway := lab.ContainerAddr(2), macIn(b, lab.Container(2)), macIn(b, lab.Edge)
	for _, c := range []struct {
		what, commands string
		concerned      []*scontest.Connection
		everything     bool
	}{
		{"a MAC address that the bridge has learnt is gone", fmt.Sprintf("bridge fdb del %s dev %s master", mac, port), all[1:2], false},
		{"a container's neighbour entry is gone", fmt.Sprintf("ip neigh del %s dev docker0", addr), all[1:2], false},
		{"a neighbour that no container uses has moved", `
			ip neigh add 172.17.0.77 lladdr 02:00:00:00:00:77 dev docker0
			ip neigh replace 172.17.0.77 lladdr 02:00:00:00:00:78 dev docker0`, nil, false},
		{"the uplink's neighbour has moved, and back", fmt.Sprintf(`
			ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:79 nud reachable dev eth0
			ip neigh replace 10.77.0.2 lladdr %s nud reachable dev eth0`, gateway), all, false},
		{"a port is isolated", fmt.Sprintf("bridge link set dev %s isolated on", port), all[1:2], false},
		{"a route to elsewhere", "ip route add 10.98.0.0/16 via 10.77.0.2", nil, false},
		{"a route to one of them", "ip route add 10.99.0.0/24 via 10.77.0.2", all[2:], false},
		{"that route is gone", "ip route del 10.99.0.0/24", all[2:], false},
		{"an address of another network", "ip addr add 10.97.0.1/24 dev docker0", all, true},
		{"another bridge with a network", `
			ip link add br9 type bridge
			ip addr add 10.96.0.1/24 dev br9
			sysctl -qw net.ipv4.conf.br9.rp_filter=2
			ip link set br9 up`, nil, false},
		{"a port is down, and up", fmt.Sprintf("ip link set %s down\nip link set %[1]s up", port), all[1:2], false},
		{"an address is gone", "ip addr del 10.97.0.1/24 dev docker0", all, true},
		{"a policy rule", "ip rule add pref 20000 table 254", all, true},
		{"a default route", "ip route add default via 10.77.0.2 metric 4000", all, true},
	} {
		for _, conn := range all {
			conn.GoExpress()
		}
		generation, before := b.Status().Generation, stale()
		b.Sh(lab.Device, c.commands)
		for _, conn := range c.concerned {
			scontest.Eventually(t, c.what+": a packet confirms its decision", func() error {
				conn.MustPing(1)
				if now := stale(); now == before {
					return fmt.Errorf("%d such packets", now)
				}
				return nil
			})
			before = stale()
		}
		time.Sleep(20 * time.Millisecond) // where nobody is concerned, nothing tells when the message was read
		if now := b.Status().Generation; (now != generation) != c.everything {
			t.Errorf("%s: generation %d, then %d", c.what, generation, now)
		}
		before = stale()
		for _, conn := range all {
			if !slices.Contains(c.concerned, conn) {
				conn.MustPing(3)
			}
		}
		if more := stale() - before; more != 0 {
			t.Errorf("%s: %d packets of connections that it does not concern had to confirm a decision", c.what, more)
		}
	}
}

// What containers send to their bridge is not routed any more once the bridge's own entry
// is gone from its table, though no program is at the bridge.
func TestBridgeForgetsItself(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, fmt.Sprintf("bridge fdb del %v dev docker0 self", b.BridgeMAC()))
	time.Sleep(20 * time.Millisecond) // nothing tells when the message was read
	if c.Ping() == nil {
		t.Error("a packet passes that the bridge does not give to IP")
	}
}

// macIn returns the MAC address of a node's eth0.
func macIn(b *scontest.Bed, node string) (mac net.HardwareAddr) {
	b.T.Helper()
	err := b.Do(node, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = dev.HardwareAddr
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return mac
}
