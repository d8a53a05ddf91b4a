package express_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// A container that starts is hooked, and one that stops loses its Conentries,
// while packets of others continue.
func TestContainerComesAndGoes(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	f := b.StartTraffic()
	f.WaitExpress()
	for range 3 {
		leaving := b.Incoming("udp", 2).GoExpress()
		b.Sh(lab.Device, "ip link set veth2 nomaster")
		took := scontest.Eventually(t, "container 2 is gone", func() error {
			if c, ok := b.Container(2); ok {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		leaving.WaitGone()
		b.Sh(lab.Device, "ip link set veth2 master docker0")
		b.WaitHooked(2)
		t.Logf("it was gone after %v", took)
	}
	last := b.Outgoing("tcp", 2).GoExpress()
	b.Sh(lab.Device, "ip link del veth2")
	last.WaitGone()
	b.Sh(lab.Device, "ip link add veth2 type veth peer name eth0 netns "+b.Node(lab.Container(2)))
	b.Sh(lab.Container(2), `
		ip addr add 172.17.0.3/16 dev eth0
		ip link set eth0 up
		ip route add default via 172.17.0.1`)
	b.Sh(lab.Device, `
		ip link set veth2 up
		ip link set veth2 master docker0`)
	b.WaitHooked(2)
	b.Outgoing("tcp", 2).GoExpress()
	f.Proceed()
	f.WaitExpress()
	f.WantUnbroken()
}

// A burst of containers is hooked.
func TestManyContainers(t *testing.T) {
	t.Parallel()
	const many = 50
	b := scontest.New(t, scontest.Layout{Containers: 1 + many, Offload: true})
	all := func(change string) string {
		var lines strings.Builder
		for n := 2; n <= 1+many; n++ {
			fmt.Fprintf(&lines, change+"\n", lab.Port(n))
		}
		file := filepath.Join(b.Dir, "batch")
		if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return "ip -batch " + file
	}
	b.Sh(lab.Device, all("link set %s nomaster"))
	b.Up()
	f := b.StartTraffic()
	f.WaitExpress()
	b.Sh(lab.Device, all("link set %s master docker0"))
	took := scontest.Eventually(t, "all are hooked", func() error {
		if n := len(b.Status().Containers); n != 1+many {
			return fmt.Errorf("%d of %d", n, 1+many)
		}
		return nil
	})
	t.Logf("the last of %d was hooked %v after it was plugged in", many, took)
	for _, n := range []int{2, many / 2, 1 + many} {
		b.Outgoing("tcp", n).GoExpress()
		b.Incoming("udp", n).GoExpress()
	}
	b.Sh(lab.Device, all("link del %s"))
	scontest.Eventually(t, "all are gone but one", func() error {
		if s := b.Status(); len(s.Containers) != 1 || len(s.Hooks) != 4 || s.Totals.Entries != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	f.Proceed()
	f.WantUnbroken()
}

// A port that moves to another bridge loses its Conentries and gets new ones
// there.
func TestPortMoves(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	before := b.Outgoing("tcp", 1).GoExpress()
	b.Sh(lab.Device, `
		ip link add br1 type bridge
		ip addr add 172.17.0.1/32 dev br1
		ip link set br1 up
		iptables-nft -I DOCKER-USER -i br1 -j ACCEPT
		iptables-nft -I DOCKER-USER -o br1 -j ACCEPT
		ip route add 172.17.0.2/32 dev br1
		ip link set veth1 master br1`)
	before.WaitGone()
	scontest.Eventually(t, "the port is on the other bridge", func() error {
		if c, _ := b.Container(1); c.Bridge != "br1" {
			return fmt.Errorf("it is on %q", c.Bridge)
		}
		return nil
	})
	b.Sh(lab.Container(1), "ip neigh flush dev eth0")
	b.Sh(lab.Device, "ip neigh flush dev br1")
	before.GoExpress() // goes on
	b.Outgoing("udp", 1).GoExpress()
	b.Outgoing("tcp", 2).GoExpress()
	b.WantNoInvalid()
}

// A named device may disappear and return while the daemon runs; the others
// are not affected.
func TestNamedDeviceGoes(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 2, Config: func(c *config.Config) {
		c.Uplinks = config.Devices{lab.Uplink, "eth1"}
		c.Bridges = config.Devices{lab.Bridge, "br1"}
	}})
	add := `
		ip link add eth1 type veth peer name eth1 netns ` + b.Node(lab.Edge) + `
		ip link set eth1 up
		ip link add br1 type bridge`
	b.Sh(lab.Device, add)
	b.Up()
	c := b.Outgoing("tcp", 1).GoExpress()
	hooked := func(dev string) (n int) {
		for _, h := range b.Status().Hooks {
			if h.Dev == dev {
				n++
			}
		}
		return n
	}
	if hooked("eth1") != 2 {
		t.Errorf("eth1 is not hooked: %+v", b.Status())
	}
	b.Sh(lab.Device, `
		ip link del eth1
		ip link del br1
		ip link set veth2 nomaster
		ip link set veth2 master docker0`)
	scontest.Eventually(t, "eth1 is gone", func() error {
		if s := b.Status(); hooked("eth1") != 0 || len(s.Skipped) != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	b.WaitHooked(2)
	b.Outgoing("udp", 2).GoExpress()
	c.GoExpress()
	b.Sh(lab.Device, add)
	scontest.Eventually(t, "eth1 is back", func() error {
		if hooked("eth1") != 2 {
			return fmt.Errorf("%+v", b.Status())
		}
		return nil
	})
}
