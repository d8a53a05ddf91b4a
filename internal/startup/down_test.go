package startup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/devices"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A bridge that somebody brought down is up for the next container, in place and from the pool. A
// pooled namespace whose end on the host is gone or down goes to nobody.
func TestDown(t *testing.T) {
	for name, ready := range map[string]int{"in place": 0, "pooled": 3} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.withPool(ready)
			add := func(id string) {
				t.Helper()
				pod := nstest.New(t)
				b.want(b.cni("ADD", id, netns.Path(pod), b.conf()))
				b.ping(pod)
			}
			add("a")
			nstest.Run(t, b.host, "ip link set br0 down")
			add("b")
			for i, harm := range []string{"ip link del %s", "ip link set %s down"} {
				for _, name := range b.devices() {
					if strings.HasPrefix(name, pooledPrefix) {
						nstest.Run(t, b.host, fmt.Sprintf(harm, name))
					}
				}
				add(fmt.Sprint(i))
			}
		})
	}
}

// The host's addresses at a bridge are restored, of which the kernel removes those of IPv6 with a
// bridge that goes down. Forwarding that an administrator ends stays ended.
func TestGatewayGone(t *testing.T) {
	b := newBed(t)
	b.start(reconcileEnv + "=100ms")
	pod := nstest.New(t)
	conf := strings.Replace(b.conf(), `"routes"`, `"ranges": [[{"subnet": "fd00:88::/64"}]], "routes"`, 1)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	const forwarding = "net.ipv4.ip_forward"
	nstest.Run(t, b.host, "sysctl -qw "+forwarding+"=0")
	for _, harm := range []string{"ip link set br0 down\nip link set br0 up", "ip addr flush dev br0"} {
		nstest.Run(t, b.host, harm)
		eventually(t, "addresses after "+harm, func() bool {
			addresses := nstest.Run(t, b.host, "ip -o addr show dev br0")
			return strings.Contains(addresses, " 10.88.0.1/24 ") && strings.Contains(addresses, " fd00:88::1/64 ")
		})
	}
	if is := nstest.Run(t, b.host, "sysctl -n "+forwarding); is != "0\n" {
		t.Errorf("%s is %s", forwarding, is)
	}
	b.ping(pod)
	nstest.Run(t, pod, "ping -n -q -c 1 -W 5 fd00:88::1")
}

// Where an administrator ends IPv6 at a bridge, it stays ended, and nothing is wrong.
func TestIPv6Ended(t *testing.T) {
	n := nstest.New(t)
	nstest.Do(t, n, func() {
		h, err := devices.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		c, err := cni.Parse([]byte(`{"cniVersion": "1.1.0", "name": "net", "type": "scon-cni", "bridge": "br0", "isGateway": true,
			"ipam": {"type": "scon", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}}`))
		if err == nil {
			err = h.Prepare(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, n, "sysctl -qw net.ipv6.conf.br0.disable_ipv6=1\nip addr flush dev br0")
		if err := h.KeepRules([]*cni.Conf{c}); err != nil {
			t.Error(err)
		}
		if addresses := nstest.Run(t, n, "ip -o addr show dev br0"); !strings.Contains(addresses, " 10.88.0.1/24 ") || strings.Contains(addresses, "fd00") {
			t.Errorf("addresses are %s", addresses)
		}
	})
}
