package startup

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/control"
	"github.com/scon-project/scon/test/bed/nstest"
)

// kindConf is a network of a kind, with master m0 if the kind has a master.
func (b *bed) kindConf(kind string, more ...string) string {
	c := strings.Replace(b.conf(append([]string{fmt.Sprintf(`"kind": %q`, kind)}, more...)...), `"bridge": "br0", "isGateway": true,`, "", 1)
	switch kind {
	case "ptp", "netkit", "ovs":
		return c
	}
	return strings.Replace(c, `"kind"`, `"master": "m0", "kind"`, 1)
}

// Every kind makes and removes a container's network, from the pool and in place; an
// unsupported kind is refused with a clear error.
func TestKinds(t *testing.T) {
	for _, kind := range []string{"ptp", "netkit", "macvlan", "macvtap", "ipvlan", "ipvtap", "tc-routing"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t)
			// The gateway of kinds with a master is behind the master.
			gateway := nstest.New(t)
			nstest.Run(t, b.host, "ip link add m0 type veth peer name g0 netns "+gateway)
			nstest.Run(t, gateway, "ip link set g0 up\nip addr add 10.88.0.1/24 dev g0")
			b.start(configEnv + "=  pool: {warm_target: 2, minimum: 0}")
			pods := []string{nstest.New(t), nstest.New(t)}
			conf := b.kindConf(kind)
			a := b.cni("ADD", "c", netns.Path(pods[0]), conf)
			if a.code == 1 && strings.Contains(a.out, "this kernel does not support it") && slices.Contains([]string{"netkit", "ipvlan", "ipvtap"}, kind) {
				b.stop()
				b.wantNothing()
				t.Skip("this kernel does not support it, and it was refused: test/kernels tests it")
			}
			b.want(a)
			b.want(b.cni("DEL", "c", netns.Path(pods[0]), conf))
			b.want(b.cni("STATUS", "", "", conf))
			if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 2}); err != nil {
				t.Fatal(err)
			}
			before := b.state().HandedOver // the first one's may have been ready
			for i, pod := range pods {
				more := conf
				if i == 1 {
					more = b.kindConf(kind, `"handOver": "none"`)
				}
				id := fmt.Sprint(i)
				b.want(b.cni("ADD", id, netns.Path(pod), more))
				b.ping(pod)
				b.want(b.cni("CHECK", id, netns.Path(pod), more))
				b.want(b.cni("DEL", id, netns.Path(pod), more))
				b.want(b.cni("DEL", id, netns.Path(pod), more))
				if strings.Contains(nstest.Run(t, pod, "ip -br link"), "eth0") {
					t.Error("the device is left")
				}
			}
			if s := b.state(); netns.HasBeneath() && s.HandedOver != before+1 {
				t.Errorf("%d were handed over, want 1: %v", s.HandedOver-before, s.InPlace)
			}
			b.stop()
			b.wantNothing()
		})
	}
}

// A DEL takes a device without an end on the host from a container that goes on, whatever the
// container has named it: another one gets its address.
func TestRenamedDevice(t *testing.T) {
	for from, more := range map[string]string{"pool": "", "in place": `"handOver": "none"`} {
		t.Run(from, func(t *testing.T) {
			b := newBed(t)
			nstest.Run(t, b.host, "ip link add m0 type bridge")
			b.start(configEnv + "=  pool: {warm_target: 1, minimum: 0}")
			var conf string
			if more == "" {
				conf = b.kindConf("macvlan")
			} else {
				conf = b.kindConf("macvlan", more)
			}
			b.want(b.cni("STATUS", "", "", conf))
			if err := control.Dial(b.socket()).FillStartupPool(control.StartupFill{Network: "net", Count: 1}); err != nil {
				t.Fatal(err)
			}
			pod := nstest.New(t)
			b.want(b.cni("ADD", "c", netns.Path(pod), conf))
			nstest.Run(t, pod, `ip link set eth0 down
				ip link set eth0 name kept alias mine
				ip link set kept up
				ip link add eth0 type bridge`)
			b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			if out := nstest.Run(t, pod, "ip -br link"); strings.Contains(out, "kept") || !strings.Contains(out, "eth0") {
				t.Errorf("the container has %s", out)
			}
			b.stop()
			b.wantNothing()
		})
	}
}

// A container's rates are set at both ends of its device.
func TestQoS(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf(`"qos": {"ingressRate": 8000000, "ingressPeak": 16000000, "egressRate": 4000000}`)))
	for ns, want := range map[string]string{b.host: "rate 8Mbit", pod: "rate 4Mbit"} {
		if out := nstest.Run(t, ns, "tc qdisc show"); !strings.Contains(out, "tbf") || !strings.Contains(out, want) {
			t.Errorf("want %s: %s", want, out)
		}
	}
	b.ping(pod)
	// containerd requests bursts without a limit.
	for i, most := range []string{`{"ingressRate": 8000, "ingressBurst": 34359738368}`, `{"egressRate": 400000000000, "egressBurst": 4294967295}`, `{"egressRate": 8000, "egressBurst": 4294967295}`} {
		pod, id := nstest.New(t), fmt.Sprint(i)
		b.want(b.cni("ADD", id, netns.Path(pod), b.conf(`"qos": `+most)))
		b.ping(pod)
	}
	for want, qos := range map[string]string{
		"8000..400000000000": `{"ingressRate": 1}`,
		"above the rate":     `{"ingressRate": 8000, "ingressPeak": 8000}`,
		"needs one":          `{"egressBurst": 8000}`,
	} {
		if a := b.cni("ADD", "d", netns.Path(nstest.New(t)), b.conf(`"qos": `+qos)); a.code != 1 || !strings.Contains(a.out, want) {
			t.Errorf("%s: %s", qos, a.out)
		}
	}
}

// listen accepts TCP connections in a namespace until the test ends.
func listen(t *testing.T, ns string, port int) {
	t.Helper()
	nstest.Do(t, ns, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 8))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
	})
}

// connects reports whether a port accepts a connection from a namespace.
func connects(t *testing.T, ns, addr string, port int) (connected bool) {
	t.Helper()
	nstest.Do(t, ns, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		patience := unix.NsecToTimeval((1500 * time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
			t.Fatal(err)
		}
		connected = unix.Connect(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(addr).As4(), Port: port}) == nil
	})
	return connected
}

// A container's rules accept the traffic they name and no other, and are removed with the
// container.
func TestRules(t *testing.T) {
	b := newBed(t)
	b.start()
	outside, pod := nstest.New(t), nstest.New(t)
	nstest.Run(t, b.host, "ip link add o0 type veth peer name eth0 netns "+outside+"\nip link set o0 up\nip addr add 10.99.0.1/24 dev o0")
	nstest.Run(t, outside, "ip link set eth0 up\nip addr add 10.99.0.2/24 dev eth0\nip route add default via 10.99.0.1")
	conf := b.conf(`"rules": [{"direction": "ingress", "protocol": "tcp", "port": 80, "portEnd": 90, "cidr": "10.99.0.0/24"}, {"direction": "egress", "protocol": "tcp"}]`)
	b.want(b.cni("ADD", "c", netns.Path(pod), conf))
	for _, port := range []int{80, 90, 91} {
		listen(t, pod, port)
	}
	listen(t, outside, 7)
	for port, want := range map[int]bool{80: true, 90: true, 91: false} {
		if got := connects(t, outside, "10.88.0.2", port); got != want {
			t.Errorf("port %d is reached: %v", port, got)
		}
	}
	if !connects(t, pod, "10.99.0.2", 7) {
		t.Error("the container does not get out")
	}
	if err := exec.Command("nsenter", "--net="+netns.Path(pod), "ping", "-c1", "-W1", "10.99.0.2").Run(); err == nil {
		t.Error("a ping gets out")
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), conf))
	if out := nstest.Run(t, b.host, "nft list table ip scon_groups"); strings.Contains(out, "chain in-") || strings.Contains(out, "10.88.0.2") {
		t.Errorf("left: %s", out)
	}
}

// A microVM's tap is connected with the container's device.
func TestTap(t *testing.T) {
	b := newBed(t)
	b.start()
	pod := nstest.New(t)
	b.want(b.cni("ADD", "c", netns.Path(pod), b.conf(`"tap": true`)))
	for _, dev := range []string{"eth0", "tap0"} {
		if out := nstest.Run(t, pod, "tc filter show dev "+dev+" ingress"); !strings.Contains(out, "mirred") {
			t.Errorf("%s: %s", dev, out)
		}
	}
	b.want(b.cni("DEL", "c", netns.Path(pod), b.conf(`"tap": true`)))
}

// A container's device ends with a DEL, wherever in its reach a process of it has put it: the next
// container has the address, and of a passthru device the master.
func TestMovedAway(t *testing.T) {
	for name, c := range map[string]struct{ harm, mode string }{
		"renamed":         {"ip link set eth0 down\nip link set eth0 name eth9", "bridge"},
		"moved":           {"ip link set eth0 netns %s", "bridge"},
		"moved, passthru": {"ip link set eth0 netns %s name eth9", "passthru"},
		"in its place":    {"ip link set eth0 netns %s\nip link add eth0 type bridge", "passthru"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.port()
			b.start()
			pod, away, next := nstest.New(t), nstest.New(t), nstest.New(t)
			conf := b.kindConf("macvlan", fmt.Sprintf(`"mode": %q`, c.mode))
			b.want(b.cni("ADD", "c", netns.Path(pod), conf))
			nstest.Run(t, pod, strings.Replace(c.harm, "%s", away, 1))
			b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			for _, ns := range []string{pod, away} {
				if out := nstest.Run(t, ns, "ip -br link"); strings.Contains(out, "eth") && !strings.Contains(c.harm, "bridge") || strings.Contains(out, "@if") {
					t.Errorf("left: %s", out)
				}
			}
			b.want(b.cni("ADD", "d", netns.Path(next), conf))
			b.ping(next)
		})
	}
}
