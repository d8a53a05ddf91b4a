package discover

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// A netkit pair that is a bridge port is a container's as a veth pair is, and
// carries its traffic.
func TestNetkitPort(t *testing.T) {
	d := newDevice(t)
	inside, err := os.Open("/run/netns/" + d.c)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	nstest.Do(t, d.ns, func() {
		pair := &netlink.Netkit{
			LinkAttrs: netlink.LinkAttrs{Name: "nk"}, Mode: netlink.NETKIT_MODE_L2,
			Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
		}
		peer := netlink.LinkAttrs{Name: "eth1", Namespace: netlink.NsFd(inside.Fd())}
		pair.SetPeerAttrs(&peer)
		err = netlink.LinkAdd(pair)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no netkit")
	}
	if err != nil {
		t.Fatal(err)
	}
	d.run("ip link set nk up")
	d.run("ip link set nk master br0")
	nstest.Run(t, d.c, `
		ip link set eth1 up
		ip addr add 10.1.0.2/24 dev eth1
		ip link set eth0 down`)
	if got, want := names(d.scan(Options{})), "bridge br0; port vc of br0; port nk of br0; uplink up0"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if kind := d.scan(Options{}).Ports[1].Kind; kind != Netkit {
		t.Errorf("port nk is of kind %q, want %q", kind, Netkit)
	}
	nstest.Run(t, d.c, "ping -c 1 -W 5 10.1.0.1")
}
