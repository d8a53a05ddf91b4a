package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/lab"
)

// Way is one from container 1 to container 2, where the server is then.
type Way struct {
	Name  string
	Short string
	// flowtable tells that the kernel's own fast path takes it, too.
	flowtable bool
	device    string     // commands that make it, in device
	container string     // and in container 2
	listen    netip.Addr // the server's address
	reach     netip.Addr // by which it is called, if it is another
}

// Whether Netfilter looks into device's bridges. Without br_netfilter it does not.
const (
	bridgeAlone   = "[ ! -e /proc/sys/net/bridge ] || sysctl -q -w net.bridge.bridge-nf-call-iptables=0\n"
	bridgeTracked = "[ -e /proc/sys/net/bridge ] || { echo 'Netfilter looks into no bridge: modprobe br_netfilter'; exit 1; }\n" +
		"sysctl -q -w net.bridge.bridge-nf-call-iptables=1\n"
)

// Ways are those that traffic between containers takes.
var Ways = []Way{
	{
		Name: "bridged", Short: "within a bridge that Netfilter does not look into",
		device: bridgeAlone, listen: lab.ContainerAddr(2),
	},
	{
		Name: "tracked", Short: "within a bridge that Netfilter looks into",
		device: bridgeTracked, listen: lab.ContainerAddr(2),
	},
	{
		Name: "hairpin", Short: "by a published port back into the bridge", flowtable: true,
		device: bridgeAlone + fmt.Sprintf(`
			iptables-nft -t nat -I PREROUTING -i docker0 -d %s -j DNAT --to %s
			iptables-nft -t nat -I POSTROUTING -s 172.17.0.0/16 -o docker0 -j MASQUERADE`, lab.DeviceAddr, lab.ContainerAddr(2)),
		listen: lab.ContainerAddr(2), reach: lab.DeviceAddr,
	},
	{
		Name: "routed", Short: "from one bridge to another", flowtable: true,
		device: `
			ip link add docker1 type bridge
			ip addr add 172.18.0.1/16 dev docker1
			ip link set docker1 up
			ip link set veth2 master docker1
			iptables-nft -I DOCKER-USER -i docker0 -o docker1 -j ACCEPT
			iptables-nft -I DOCKER-USER -i docker1 -o docker0 -j ACCEPT`,
		container: `
			ip addr flush dev eth0
			ip addr add 172.18.0.2/16 dev eth0
			ip route add default via 172.18.0.1`,
		listen: netip.MustParseAddr("172.18.0.2"),
	},
}

// Between returns the experiment with its traffic between two containers, by a
// way: quick-routed. What crosses the uplink or takes no container is left out.
func (e Experiment) Between(way string) (Experiment, error) {
	i := slices.IndexFunc(Ways, func(w Way) bool { return w.Name == way })
	if i < 0 {
		return Experiment{}, fmt.Errorf("want %s", strings.Join(wayNames(), ", "))
	}
	if e.IPv6 || e.Overlay || e.Uplink != "" {
		return Experiment{}, fmt.Errorf("over IPv4 only, by no overlay or uplink")
	}
	return e.by(&Ways[i]), nil
}

// by returns the experiment with its traffic by a way between two containers.
func (e Experiment) by(w *Way) Experiment {
	e.Name, e.Short, e.Way = e.Name+"-"+w.Name, e.Short+", between two containers "+w.Short, w
	e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m Mode) bool { return m == Native || m.netkit || m.flowtable && !w.flowtable })
	e.Steps = slices.DeleteFunc(slices.Clone(e.Steps), func(s Step) bool { return s.Softirq })
	return e
}

func wayNames() (names []string) {
	for _, w := range Ways {
		names = append(names, w.Name)
	}
	return names
}

// take makes the way in a bed whose lab has two containers.
func (w *Way) take(b *bed) error {
	b.ports = []string{lab.Port(1), lab.Port(2)}
	b.far, b.server, b.reach = lab.Container(2), w.listen, w.reach
	b.nodes = append(b.nodes, b.far)
	for node, commands := range map[string]string{lab.Device: w.device, lab.Container(2): w.container} {
		out, err := []byte(nil), error(nil)
		cmd := exec.CommandContext(context.Background(), "sh", "-ec", commands)
		if startErr := b.lab.Do(node, func() error { out, err = cmd.CombinedOutput(); return nil }); startErr != nil {
			return startErr
		}
		if err != nil {
			return fmt.Errorf("make the way %s in %s: %w: %s", w.Name, node, err, out)
		}
	}
	return nil
}
