package startup

import (
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/test/bed/nstest"
)

// port adds a port m0 to the host, and a gateway behind it that forwards between three
// subnets.
func (b *bed) port() (gateway string) {
	b.t.Helper()
	gateway = nstest.New(b.t)
	nstest.Run(b.t, b.host, "ip link add m0 type veth peer name g0 netns "+gateway)
	nstest.Run(b.t, gateway, "ip link set g0 up\nip addr add 10.88.0.1/24 dev g0\nip addr add 10.88.1.1/24 dev g0\nip addr add 10.88.2.1/24 dev g0\nsysctl -qw net.ipv4.ip_forward=1")
	return gateway
}

// Tenants share one port of the host and cannot reach each other: neither directly, nor by the
// gateway behind it, nor with another container's address.
func TestRouting(t *testing.T) {
	b := newBed(t)
	gateway := b.port()
	b.start()
	confA, confB := b.tenantConf("a", 0, `"kind": "tc-routing", "master": "m0"`), b.tenantConf("b", 1, `"kind": "tc-routing", "master": "m0"`)
	confRemote := b.tenantConf("a", 2, `"kind": "tc-routing", "master": "m0"`)
	one, two, remote, other := nstest.New(t), nstest.New(t), nstest.New(t), nstest.New(t)
	b.want(b.cni("ADD", "one", netns.Path(one), confA))
	b.want(b.cni("ADD", "two", netns.Path(two), confA))
	b.want(b.cni("ADD", "remote", netns.Path(remote), confRemote))
	b.want(b.cni("ADD", "other", netns.Path(other), confB))
	wantReach(t, one, map[string]bool{"10.88.0.1": true, "10.88.0.3": true, "10.88.2.2": true, "10.88.1.1": true, "10.88.1.2": false})
	wantReach(t, other, map[string]bool{"10.88.1.1": true, "10.88.0.2": false})
	wantReach(t, gateway, map[string]bool{"10.88.0.2": true, "10.88.0.3": true, "10.88.1.2": true})
	if out := nstest.Run(t, b.host, "ip -s link show m0"); !strings.Contains(out, "PROMISC") {
		t.Errorf("m0: %s", out)
	}

	// Frames with another container's source address are dropped.
	nstest.Run(t, other, "ip addr add 10.88.0.9/24 dev eth0")
	wantReach(t, other, map[string]bool{"10.88.0.1": false, "10.88.0.2": false})
	nstest.Run(t, other, "ip addr del 10.88.0.9/24 dev eth0")
	nstest.Run(t, other, "ip link set eth0 down\nip link set eth0 address 0a:58:0a:58:00:02\nip link set eth0 up\nip route add default via 10.88.1.1")
	wantReach(t, other, map[string]bool{"10.88.1.1": false})

	// The next agent uses the same table.
	b.kill()
	wantReach(t, one, map[string]bool{"10.88.0.3": true})
	b.start()
	for id, pod := range map[string]string{"one": one, "two": two} {
		b.want(b.cni("CHECK", id, netns.Path(pod), confA))
	}
	b.want(b.cni("DEL", "two", netns.Path(two), confA))
	wantReach(t, one, map[string]bool{"10.88.0.1": true, "10.88.0.3": false})
	b.want(b.cni("DEL", "one", netns.Path(one), confA))
	b.want(b.cni("DEL", "other", netns.Path(other), confB))
	b.want(b.cni("DEL", "remote", netns.Path(remote), confRemote))
	b.stop()
	b.wantNothing()
	if out := nstest.Run(t, b.host, "ip link show m0\ntc qdisc show dev m0"); strings.Contains(out, "clsact") || strings.Contains(out, "PROMISC") {
		t.Errorf("left at m0: %s", out)
	}
}

// An agent that dies while it adds a container leaves nothing of it.
func TestRoutingKilled(t *testing.T) {
	for _, at := range []string{"add-made", "add-kept", "del-begin", "del-device", "pool-made"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			gateway := b.port()
			conf := b.kindConf("tc-routing", `"agentDown": "error"`)
			pod := nstest.New(t)
			if at == "pool-made" {
				b.dieFilling(conf, at)
			} else {
				b.start(faultEnv + "=" + at)
				_ = b.cni("ADD", "c", netns.Path(pod), conf)
				b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			}
			b.kill()
			b.start()
			pod = nstest.New(t)
			b.want(b.cni("ADD", "after", netns.Path(pod), conf))
			b.ping(pod)
			b.want(b.cni("DEL", "after", netns.Path(pod), conf))
			wantReach(t, gateway, map[string]bool{"10.88.0.2": false})
			b.stop()
			b.wantNothing()
			if out := nstest.Run(t, b.host, "tc qdisc show dev m0"); strings.Contains(out, "clsact") {
				t.Errorf("left at m0: %s", out)
			}
		})
	}
}

// CHECK examines the programs and the table of a container.
func TestRoutingCheck(t *testing.T) {
	b := newBed(t)
	b.port()
	b.start()
	conf := b.kindConf("tc-routing")
	for what, take := range map[string]string{
		"scon_route_in":  "tc filter del dev m0 ingress",
		"scon_route_out": "tc filter del dev DEV ingress",
		"m0 is down":     "ip link set m0 down",
	} {
		t.Run(what, func(t *testing.T) {
			pod := nstest.New(t)
			b.want(b.cni("ADD", "c", netns.Path(pod), conf))
			b.want(b.cni("CHECK", "c", netns.Path(pod), conf))
			nstest.Run(t, b.host, strings.Replace(take, "DEV", b.devices()[0], 1))
			if a := b.cni("CHECK", "c", netns.Path(pod), conf); a.code != 1 || !strings.Contains(a.out, what) {
				t.Errorf("CHECK: %d %s", a.code, a.out)
			}
			b.want(b.cni("DEL", "c", netns.Path(pod), conf))
			// The next agent restores the shared state.
			b.stop()
			b.start()
		})
	}
}
