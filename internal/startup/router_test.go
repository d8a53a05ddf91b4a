package startup

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// The host ignores router advertisements of containers.
func TestNoRouterInContainer(t *testing.T) {
	for kind, keys := range map[string]string{"veth": `"isGateway": false`, "ptp": `"kind": "ptp"`} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			b.start()
			pod := nstest.New(t)
			b.want(b.cni("ADD", "c", netns.Path(pod), b.tenantConf("", 0, keys)))
			eventually(t, "the container has a link-local address", func() bool {
				out := nstest.Run(t, pod, "ip -6 -o addr show dev eth0 scope link")
				return out != "" && !strings.Contains(out, "tentative")
			})
			advertise(t, pod)
			eventually(t, "the host hears of a router", func() bool {
				return routersHeard(t, b.host) == "1"
			})
			if out := nstest.Run(t, b.host, "ip -6 route show default"); out != "" {
				t.Errorf("the container is the host's router: %s", out)
			}
		})
	}
}

// Where the host is the gateway, a container takes no other one for its router of IPv6, also if
// that is gone since it advertised itself to the pool.
func TestNoRouterAmongContainers(t *testing.T) {
	swaps(t)
	b := newBed(t)
	b.withPool(3)
	hostile, witness, next := nstest.New(t), nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "hostile", netns.Path(hostile), b.conf()))
	b.want(b.cni("ADD", "witness", netns.Path(witness), b.conf()))
	eventually(t, "the containers have link-local addresses", func() bool {
		out := nstest.Run(t, hostile, "ip -6 -o addr show dev eth0 scope link") + nstest.Run(t, witness, "ip -6 -o addr show dev eth0 scope link")
		return strings.Count(out, "inet6") == 2 && !strings.Contains(out, "tentative")
	})
	advertise(t, hostile)
	eventually(t, "another container hears of a router", func() bool { return routersHeard(t, witness) == "1" })
	b.want(b.cni("DEL", "hostile", netns.Path(hostile), b.conf()))
	b.want(b.cni("ADD", "next", netns.Path(next), b.conf()))
	if routersHeard(t, next) != "1" {
		t.Errorf("the next container is not one that was in the pool: %v", b.state().InPlace)
	}
	for _, pod := range []string{witness, next} {
		if out := nstest.Run(t, pod, "ip -6 route show default"); out != "" {
			t.Errorf("another container is the router: %s", out)
		}
	}
}

// advertise sends a router's advertisement.
func advertise(t *testing.T, ns string) {
	t.Helper()
	nstest.Do(t, ns, func() {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		// Type, lifetime of half an hour; the kernel adds the checksum.
		router := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, eth0.Index),
			unix.Sendto(fd, router, 0, &unix.SockaddrInet6{ZoneId: uint32(eth0.Index), Addr: [16]byte{0xff, 2, 15: 1}}))
		if err != nil {
			t.Fatal(err)
		}
	})
}

// routersHeard returns the number of router advertisements that a namespace received.
func routersHeard(t *testing.T, ns string) (count string) {
	t.Helper()
	nstest.Do(t, ns, func() {
		b, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "Icmp6InRouterAdvertisements" {
				count = f[1]
			}
		}
	})
	return count
}
