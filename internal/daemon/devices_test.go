package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
)

// A container that starts is hooked, and one that stops takes its Conentries
// along, while others' packets go on.
func TestContainerComesAndGoes(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{containers: 2})
	f := b.startTraffic()
	f.waitExpress()
	for range 3 {
		leaving := b.incoming("udp", 2).goExpress()
		b.sh(lab.Device, "ip link set veth2 nomaster")
		took := eventually(t, "container 2 is gone", func() error {
			if c, ok := b.container(2); ok {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		leaving.waitGone()
		b.sh(lab.Device, "ip link set veth2 master docker0")
		b.waitHooked(2)
		t.Logf("it was gone after %v", took)
	}
	last := b.outgoing("tcp", 2).goExpress()
	b.sh(lab.Device, "ip link del veth2")
	last.waitGone()
	b.sh(lab.Device, "ip link add veth2 type veth peer name eth0 netns "+b.Node(lab.Container(2)))
	b.sh(lab.Container(2), `
		ip addr add 172.17.0.3/16 dev eth0
		ip link set eth0 up
		ip route add default via 172.17.0.1`)
	b.sh(lab.Device, `
		ip link set veth2 up
		ip link set veth2 master docker0`)
	b.waitHooked(2)
	b.outgoing("tcp", 2).goExpress()
	f.proceed()
	f.waitExpress()
	f.wantUnbroken()
}

// A burst of containers is hooked as well as one.
func TestManyContainers(t *testing.T) {
	t.Parallel()
	const many = 50
	b := newBed(t, layout{containers: 1 + many, offload: true})
	all := func(change string) string {
		var lines strings.Builder
		for n := 2; n <= 1+many; n++ {
			fmt.Fprintf(&lines, change+"\n", lab.Port(n))
		}
		file := filepath.Join(b.dir, "batch")
		if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return "ip -batch " + file
	}
	b.sh(lab.Device, all("link set %s nomaster"))
	b.up()
	f := b.startTraffic()
	f.waitExpress()
	b.sh(lab.Device, all("link set %s master docker0"))
	took := eventually(t, "all are hooked", func() error {
		if n := len(b.status().Containers); n != 1+many {
			return fmt.Errorf("%d of %d", n, 1+many)
		}
		return nil
	})
	t.Logf("the last of %d was hooked %v after it was plugged in", many, took)
	for _, n := range []int{2, many / 2, 1 + many} {
		b.outgoing("tcp", n).goExpress()
		b.incoming("udp", n).goExpress()
	}
	b.sh(lab.Device, all("link del %s"))
	eventually(t, "all are gone but one", func() error {
		if s := b.status(); len(s.Containers) != 1 || len(s.Hooks) != 4 || s.Totals.Entries != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	f.proceed()
	f.wantUnbroken()
}

// A port that moves to another bridge loses its Conentries, and gets others
// there.
func TestPortMoves(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{containers: 2})
	before := b.outgoing("tcp", 1).goExpress()
	b.sh(lab.Device, `
		ip link add br1 type bridge
		ip addr add 172.17.0.1/32 dev br1
		ip link set br1 up
		iptables-nft -I DOCKER-USER -i br1 -j ACCEPT
		iptables-nft -I DOCKER-USER -o br1 -j ACCEPT
		ip route add 172.17.0.2/32 dev br1
		ip link set veth1 master br1`)
	before.waitGone()
	eventually(t, "the port is on the other bridge", func() error {
		if c, _ := b.container(1); c.Bridge != "br1" {
			return fmt.Errorf("it is on %q", c.Bridge)
		}
		return nil
	})
	b.sh(lab.Container(1), "ip neigh flush dev eth0")
	b.sh(lab.Device, "ip neigh flush dev br1")
	before.goExpress() // goes on
	b.outgoing("udp", 1).goExpress()
	b.outgoing("tcp", 2).goExpress()
	b.wantNoInvalid()
}

// A device that is named may go and come back while the daemon lives, and the
// others are cared for meanwhile.
func TestNamedDeviceGoes(t *testing.T) {
	t.Parallel()
	b := newBed(t, layout{containers: 2, config: func(c *config.Config) {
		c.Uplinks = config.Devices{lab.Uplink, "eth1"}
		c.Bridges = config.Devices{lab.Bridge, "br1"}
	}})
	add := `
		ip link add eth1 type veth peer name eth1 netns ` + b.Node(lab.Edge) + `
		ip link set eth1 up
		ip link add br1 type bridge`
	b.sh(lab.Device, add)
	b.up()
	c := b.outgoing("tcp", 1).goExpress()
	hooked := func(dev string) (n int) {
		for _, h := range b.status().Hooks {
			if h.Dev == dev {
				n++
			}
		}
		return n
	}
	if hooked("eth1") != 2 {
		t.Errorf("eth1 is not hooked: %+v", b.status())
	}
	b.sh(lab.Device, `
		ip link del eth1
		ip link del br1
		ip link set veth2 nomaster
		ip link set veth2 master docker0`)
	eventually(t, "eth1 is gone", func() error {
		if s := b.status(); hooked("eth1") != 0 || len(s.Skipped) != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	b.waitHooked(2)
	b.outgoing("udp", 2).goExpress()
	c.goExpress()
	b.sh(lab.Device, add)
	eventually(t, "eth1 is back", func() error {
		if hooked("eth1") != 2 {
			return fmt.Errorf("%+v", b.status())
		}
		return nil
	})
}
