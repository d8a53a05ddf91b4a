package faults

import (
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/nstest"
	"github.com/scon-project/scon/test/bed/scontest"
)

// container is a container in addition to those of the lab.
type container struct {
	b    *scontest.Bed
	name string // name of its namespace
	port string
	addr netip.Addr
}

// containers counts the containers of this process.
var containers atomic.Uint32

// startContainer creates a container as Docker does: a namespace, a veth pair, a bridge
// port. The end of the test removes it.
func startContainer(b *scontest.Bed) *container {
	b.T.Helper()
	n := containers.Add(1)
	c := &container{
		b: b, name: fmt.Sprintf("scon-f%d-%d", os.Getpid(), n), port: fmt.Sprintf("vf%d", n),
		addr: netip.AddrFrom4([4]byte{172, 17, byte(1 + n/200), byte(1 + n%200)}),
	}
	if err := netns.Create(c.name); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(c.stop)
	b.Sh(lab.Device, fmt.Sprintf(`
		ip link add %[1]s type veth peer name eth0 netns %[2]s
		ip link set %[1]s master docker0 up`, c.port, netns.Path(c.name)))
	nstest.Run(b.T, c.name, fmt.Sprintf(`
		ip addr add %v/16 dev eth0
		ip link set eth0 up
		ip route add default via 172.17.0.1`, c.addr))
	return c
}

// stop removes the container and its devices. Stopping twice is allowed.
func (c *container) stop() {
	c.b.T.Helper()
	if c.name == "" {
		return
	}
	if err := netns.Delete(c.name); err != nil {
		c.b.T.Error(err)
	}
	c.name = ""
}
