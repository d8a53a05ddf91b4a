package bench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scon-project/scon/lab/bench/peer"
	"github.com/scon-project/scon/test/bed/lab"
)

// Path is a path from container 1 by the bridge to server.
type Path struct {
	Name  string
	Short string
	// server runs the servers: container 2, or edge, a machine in the containers' network.
	server string
	// flowtable is set if the kernel's flowtable also accelerates this path.
	flowtable bool
	device    string     // shell commands that set it up in device
	there     string     // shell commands that set it up in server
	hidden    bool       // container 2 is the engine's namespace with the containers' bridge and its VXLAN device
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

// These commands make the uplink a port of the containers' bridge, and edge a machine in
// their network.
const (
	wireBridged = "ip addr flush dev eth0\nip link set eth0 master docker0\n"
	edgeBridged = "ip addr flush dev eth0\nip addr add 172.17.0.99/16 dev eth0\n"
)

var edgeOutside = netip.MustParseAddr("172.17.0.99")

// These commands join container 1 and edge by a Swarm's overlay network, web: as the engine
// does, the VXLAN device is made in device, and moved with its socket there to a namespace
// of the bridge, $HIDDEN.
var (
	deviceOverlay = fmt.Sprintf(`
		ip link add vxlan0 mtu %[1]d type vxlan id 4097 dstport 4789 learning proxy l2miss l3miss
		ip link set vxlan0 netns $HIDDEN
		ip -n $HIDDEN link set eth0 down
		ip -n $HIDDEN link add br0 mtu %[1]d type bridge
		ip -n $HIDDEN link add veth0 mtu %[1]d type veth peer name eth1 mtu %[1]d address 02:42:0a:00:00:02 netns $CONTAINER
		for port in vxlan0 veth0; do ip -n $HIDDEN link set $port master br0 up; done
		ip -n $HIDDEN link set br0 up
		ip -n $HIDDEN neigh add %[2]s lladdr 02:42:0a:00:00:fe dev vxlan0 nud permanent
		bridge -n $HIDDEN fdb add 02:42:0a:00:00:fe dev vxlan0 dst %[3]s self permanent
		ip -n $CONTAINER addr add 10.0.0.2/24 dev eth1
		ip -n $CONTAINER link set eth1 up
		`, lab.OverlayMTU, lab.OverlayEdge, lab.EdgeAddr)
	edgeOverlay = fmt.Sprintf(`
		ip link add br0 mtu %[1]d address 02:42:0a:00:00:fe type bridge
		ip link add vxlan0 mtu %[1]d type vxlan id 4097 dstport 4789 learning proxy l2miss l3miss
		ip link set vxlan0 master br0 up
		ip link set br0 up
		ip addr add %[2]s/24 dev br0
		ip neigh add 10.0.0.2 lladdr 02:42:0a:00:00:02 dev vxlan0 nud permanent
		bridge fdb add 02:42:0a:00:00:02 dev vxlan0 dst %[3]s self permanent
		`, lab.OverlayMTU, lab.OverlayEdge, lab.DeviceAddr)
)

// Paths are the paths between two containers, and by the bridge to a machine outside.
var Paths = []Path{
	{
		Name: "bridged", Short: "between two containers within a bridge that Netfilter does not filter", server: lab.Container(2),
		device: bridgeAlone, listen: lab.ContainerAddr(2),
	},
	{
		Name: "tracked", Short: "between two containers within a bridge that Netfilter filters", server: lab.Container(2),
		device: bridgeTracked, listen: lab.ContainerAddr(2),
	},
	{
		Name: "hairpin", Short: "between two containers through a published port back into the bridge", server: lab.Container(2), flowtable: true,
		device: bridgeAlone + fmt.Sprintf(`
			iptables-nft -t nat -I PREROUTING -i docker0 -d %s -j DNAT --to %s
			iptables-nft -t nat -I POSTROUTING -s 172.17.0.0/16 -o docker0 -j MASQUERADE`, lab.DeviceAddr, lab.ContainerAddr(2)),
		listen: lab.ContainerAddr(2), reach: lab.DeviceAddr,
	},
	{
		Name: "routed", Short: "between two containers on two bridges", server: lab.Container(2), flowtable: true,
		device: `
			ip link add docker1 type bridge
			ip addr add 172.18.0.1/16 dev docker1
			ip link set docker1 up
			ip link set veth2 master docker1
			iptables-nft -I DOCKER-USER -i docker0 -o docker1 -j ACCEPT
			iptables-nft -I DOCKER-USER -i docker1 -o docker0 -j ACCEPT`,
		there: `
			ip addr flush dev eth0
			ip addr add 172.18.0.2/16 dev eth0
			ip route add default via 172.18.0.1`,
		listen: netip.MustParseAddr("172.18.0.2"),
	},
	{
		Name: "bridged-out", Short: "to a machine outside of a bridge that Netfilter does not filter", server: lab.Edge,
		device: wireBridged + bridgeAlone, there: edgeBridged, listen: edgeOutside,
	},
	{
		Name: "tracked-out", Short: "to a machine outside of a bridge that Netfilter filters", server: lab.Edge,
		device: wireBridged + bridgeTracked, there: edgeBridged, listen: edgeOutside,
	},
	{
		Name: "swarm", Short: "to another machine of a Swarm by its overlay network", server: lab.Edge, hidden: true,
		device: deviceOverlay, there: edgeOverlay, listen: lab.OverlayEdge,
	},
}

// isOut reports whether the path leads to a machine outside.
func (p *Path) isOut() bool { return p.server == lab.Edge }

// Between returns the experiment with its traffic on the named path, for example
// quick-routed. Between two containers it drops steps and modes that need the uplink
// or no container.
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

// on returns the experiment with its traffic on a path.
func (e Experiment) on(p *Path) Experiment {
	e.Name, e.Short, e.Path = e.Name+"-"+p.Name, e.Short+", "+p.Short, p
	e.Modes = slices.DeleteFunc(slices.Clone(e.Modes), func(m Mode) bool {
		return m == Native && (!p.isOut() || p.hidden) || m.netkit || m.flowtable && !p.flowtable
	})
	e.Steps = slices.DeleteFunc(slices.Clone(e.Steps), func(s Step) bool { return s.Softirq && !p.isOut() })
	if p.isOut() && !p.hidden && e.Counted {
		e.Steps = append(e.Steps, costStorms...)
	}
	for i := range e.Steps {
		s := &e.Steps[i]
		// Without replies SCON does not know where the bridge sends the packets.
		s.FewExpress = s.FewExpress || p.isOut() && s.Spec.Proto == "udp" && s.Spec.Pattern == peer.Stream
	}
	return e
}

func pathNames() (names []string) {
	for _, p := range Paths {
		names = append(names, p.Name)
	}
	return names
}

// containers is the number of containers that the path needs.
func (p *Path) containers() int {
	if p.isOut() && !p.hidden {
		return 1
	}
	return 2
}

// setUp sets up the path in a bed whose lab has that many containers.
func (p *Path) setUp(b *bed) error {
	b.serverNode, b.server, b.reach = p.server, p.listen, p.reach
	if p.hidden {
		b.daemonNode, b.uplink, b.ports = lab.Container(2), lab.OverlayVXLAN, []string{"veth0"}
	}
	if p.isOut() {
		b.settings = fmt.Sprintf("uplinks: [%s]\n", b.uplink) // it resembles a container's port
	} else {
		b.ports = append(b.ports, lab.Port(2))
		b.nodes = append(b.nodes, b.serverNode)
	}
	for node, commands := range map[string]string{lab.Device: p.device, p.server: p.there} {
		out, err := []byte(nil), error(nil)
		cmd := exec.CommandContext(context.Background(), "sh", "-ec", commands)
		cmd.Env = append(os.Environ(), "CONTAINER="+filepath.Base(b.lab.Node(lab.Container(1))), "HIDDEN="+filepath.Base(b.lab.Node(lab.Container(2))))
		if startErr := b.lab.Do(node, func() error { out, err = cmd.CombinedOutput(); return nil }); startErr != nil {
			return startErr
		}
		if err != nil {
			return fmt.Errorf("set up the path %s in %s: %w: %s", p.Name, node, err, out)
		}
	}
	return nil
}
