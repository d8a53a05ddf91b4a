package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/scon-project/scon/test/bed/lab"
)

// Path is a path from container 1 to container 2, which then runs the server.
type Path struct {
	Name  string
	Short string
	// flowtable is set if the kernel's flowtable also accelerates this path.
	flowtable bool
	device    string     // shell commands that set it up in device
	container string     // shell commands that set it up in container 2
	listen    netip.Addr // address that the server listens on
	reach     netip.Addr // address that clients connect to, if it differs from listen
}

// These commands set whether Netfilter filters bridged packets in device. Without
// br_netfilter it does not.
const (
	bridgeAlone   = "[ ! -e /proc/sys/net/bridge ] || sysctl -q -w net.bridge.bridge-nf-call-iptables=0\n"
	bridgeTracked = "[ -e /proc/sys/net/bridge ] || { echo 'Netfilter does not filter bridged packets: modprobe br_netfilter'; exit 1; }\n" +
		"sysctl -q -w net.bridge.bridge-nf-call-iptables=1\n"
)

// Paths are the paths between two containers.
var Paths = []Path{
	{
		Name: "bridged", Short: "within a bridge that Netfilter does not filter",
		device: bridgeAlone, listen: lab.ContainerAddr(2),
	},
	{
		Name: "tracked", Short: "within a bridge that Netfilter filters",
		device: bridgeTracked, listen: lab.ContainerAddr(2),
	},
	{
		Name: "hairpin", Short: "through a published port back into the bridge", flowtable: true,
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

// Between returns the experiment with its traffic between two containers on the
// named path, for example quick-routed. It drops steps and modes that need the
// uplink or no container.
func (e Experiment) Between(path string) (Experiment, error) {
	i := slices.IndexFunc(Paths, func(p Path) bool { return p.Name == path })
	if i < 0 {
		return Experiment{}, fmt.Errorf("want %s", strings.Join(pathNames(), ", "))
	}
	if e.IPv6 || e.Overlay || e.Uplink != "" {
		return Experiment{}, fmt.Errorf("IPv4 only, without an overlay or another uplink")
	}
	return e.on(&Paths[i]), nil
}

// on returns the experiment with its traffic between two containers on a path.
func (e Experiment) on(p *Path) Experiment {
	e.Name, e.Short, e.Path = e.Name+"-"+p.Name, e.Short+", between two containers "+p.Short, p
	e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m Mode) bool { return m == Native || m.netkit || m.flowtable && !p.flowtable })
	e.Steps = slices.DeleteFunc(slices.Clone(e.Steps), func(s Step) bool { return s.Softirq })
	return e
}

func pathNames() (names []string) {
	for _, p := range Paths {
		names = append(names, p.Name)
	}
	return names
}

// setUp sets up the path in a bed whose lab has two containers.
func (p *Path) setUp(b *bed) error {
	b.ports = []string{lab.Port(1), lab.Port(2)}
	b.serverNode, b.server, b.reach = lab.Container(2), p.listen, p.reach
	b.nodes = append(b.nodes, b.serverNode)
	for node, commands := range map[string]string{lab.Device: p.device, lab.Container(2): p.container} {
		out, err := []byte(nil), error(nil)
		cmd := exec.CommandContext(context.Background(), "sh", "-ec", commands)
		if startErr := b.lab.Do(node, func() error { out, err = cmd.CombinedOutput(); return nil }); startErr != nil {
			return startErr
		}
		if err != nil {
			return fmt.Errorf("set up the path %s in %s: %w: %s", p.Name, node, err, out)
		}
	}
	return nil
}
