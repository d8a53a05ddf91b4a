package differential

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/host/nlmsg"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The nodes that send and receive packets. Their kernels have no addresses and answer
// nothing; device's kernel is set up as on a real host:
//
//	 edge          device, a real kernel               c1, c2
//	+------+   +---------------------------+   +----------------+
//	| eth0 |---| eth0    docker0 -- veth1 -|---| eth0           |
//	+------+   | 10.77.0.1,11   +-- veth2 -|---|                |
//	           | 172.17.0.1                |   | 172.17.0.2, .3 |
//	           +---------------------------+   +----------------+
const (
	edge = iota
	c1
	c2
	nodes
)

var nodeNames = [nodes]string{lab.Edge, lab.Container(1), lab.Container(2)}

// MAC addresses, the same in both worlds.
var (
	edgeMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0xe0}
	uplinkMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xd0}
	bridgeMAC = net.HardwareAddr{2, 0x42, 172, 17, 0, 1}
	nodeMACs  = [nodes]net.HardwareAddr{edgeMAC, {2, 0x42, 172, 17, 0, 2}, {2, 0x42, 172, 17, 0, 3}}
)

// No rate limit of ICMP errors, no ARP, and a gateway that only routing rules use.
// Conntrack keeps a connection that was reset for longer than a case takes, since it
// accepts some RSTs in one world only (differential.md).
const setUpDevice = `
sysctl -q -w net.ipv4.icmp_ratemask=0 net.netfilter.nf_conntrack_acct=1 net.netfilter.nf_conntrack_tcp_timeout_close=600
for d in all default eth0 docker0; do sysctl -q -w net.ipv4.conf.$d.send_redirects=0; done
for d in eth0 docker0 veth1 veth2; do sysctl -q -w net.ipv4.neigh.$d.mcast_solicit=1000 net.ipv6.neigh.$d.mcast_solicit=1000; done
ip link set eth0 address 02:00:00:00:00:d0
ip link set veth1 address 02:00:00:00:00:d1
ip link set veth2 address 02:00:00:00:00:d2
ip addr add 10.77.0.11/24 dev eth0
ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:e0 dev eth0 nud permanent
ip neigh replace 10.77.0.9 lladdr 02:00:00:00:00:e1 dev eth0 nud permanent
ip neigh replace 10.77.0.55 lladdr 02:00:00:00:00:e2 dev eth0 nud permanent
ip neigh replace 172.17.0.77 lladdr 02:00:00:00:00:77 dev docker0 nud permanent
ip neigh replace 172.17.0.2 lladdr 02:42:ac:11:00:02 dev docker0 nud permanent
ip neigh replace 172.17.0.3 lladdr 02:42:ac:11:00:03 dev docker0 nud permanent
ip route replace default via 10.77.0.2 dev eth0
ip rule add fwmark 5 lookup 105
ip route add default via 10.77.0.9 dev eth0 table 105
`

// The same for IPv6. Device's own answers have flow label 0, by which they are
// recognised. Link-local addresses derive from MAC addresses; those from before are
// removed.
const setUpDevice6 = `
sysctl -q -w net.ipv6.icmp.ratelimit=0 net.ipv6.auto_flowlabels=0
for d in eth0 veth1 veth2; do ip -6 addr flush dev $d scope link; done
ip addr add fe80::d0/64 dev eth0 nodad
ip addr add fd00:77::11/64 dev eth0 nodad
ip neigh replace fd00:77::2 lladdr 02:00:00:00:00:e0 dev eth0 nud permanent
ip neigh replace fd00:77::9 lladdr 02:00:00:00:00:e1 dev eth0 nud permanent
ip neigh replace fd00:77::55 lladdr 02:00:00:00:00:e2 dev eth0 nud permanent
ip neigh replace fd00:17::77 lladdr 02:00:00:00:00:77 dev docker0 nud permanent
ip neigh replace fd00:17::2 lladdr 02:42:ac:11:00:02 dev docker0 nud permanent
ip neigh replace fd00:17::3 lladdr 02:42:ac:11:00:03 dev docker0 nud permanent
ip -6 rule add fwmark 5 lookup 105
ip -6 route add default via fd00:77::9 dev eth0 table 105
`

// The default routes have two gateways each, as next-hop objects, which they name alone. IPv4
// hashes ports, IPv6 addresses and flow labels. Policy 1 would go by a packet's own hash, which it
// has as long as any world has a rule that traces (findings/nft-trace-moves-next-hops.sh).
const setUpSpread = `
sysctl -q -w net.ipv4.fib_multipath_hash_policy=3 net.ipv4.fib_multipath_hash_fields=0x37 net.ipv4.nexthop_compat_mode=0
ip nexthop add id 2 via 10.77.0.2 dev eth0
ip nexthop add id 9 via 10.77.0.9 dev eth0
ip nexthop add id 1 group 2/9
ip route replace default nhid 1
`

const setUpSpread6 = `
ip nexthop add id 12 via fd00:77::2 dev eth0
ip nexthop add id 19 via fd00:77::9 dev eth0
ip nexthop add id 11 group 12/19
ip -6 route replace default nhid 11
`

// A tun device, an uplink without MAC addresses, replaces the wire. It has no
// neighbour discovery and no neighbour addresses.
var (
	setUpBare = `
sysctl -q -w net.ipv6.conf.eth0.addr_gen_mode=1
ip addr add 10.77.0.1/24 dev eth0
ip link set eth0 up
` + ofBare(setUpDevice)
	setUpBare6 = `
ip addr add fd00:77::1/64 dev eth0 nodad
ip -6 route replace default via fd00:77::2 dev eth0
` + ofBare(setUpDevice6)
)

// ofBare removes the commands that set MAC addresses of the uplink.
func ofBare(commands string) string {
	lines := strings.Split(commands, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, "dev eth0 nud") || strings.HasPrefix(line, "ip link set eth0 address")
	}), "\n")
}

// overVXLAN replaces a node's eth0 by a VXLAN device: %s are its MAC address, and the
// local and the remote address of the tunnel. Outer checksums are off: with them, a
// packet with a wrong inner checksum would not arrive.
const overVXLAN = `
ip link set eth0 down
ip link set eth0 name under0
ip addr flush dev under0
ip link set under0 mtu 1550
ip addr add %[2]s/24 dev under0
ip link set under0 up
ip link add eth0 address %[1]s mtu 1500 type vxlan id 7 dstport 4789 local %[2]s remote %[3]s dev under0 nolearning noudpcsum
ip link set eth0 up
`

// overBridge replaces device's eth0 by a bridge with the wire as its port: %s is its
// MAC address.
const overBridge = `
ip link set eth0 down
ip link set eth0 name under0
ip addr flush dev under0
ip link add eth0 address %s type bridge
ip link set under0 master eth0
ip link set under0 up
ip link set eth0 up
ip addr add 10.77.0.1/24 dev eth0
`

// overPort makes the wire a port of the containers' bridge, which gets device's addresses
// outside in its place.
const overPort = `
ip addr flush dev eth0
ip link set eth0 master docker0
ip addr add 10.77.0.1/24 dev docker0
`

const overPort6 = `
ip addr add fd00:77::1/64 dev docker0 nodad
ip -6 route flush default
ip -6 route add default via fd00:77::2 dev docker0
`

// setUpRouted removes the containers' ports from the bridge and adds a route to each
// container. The next hop keeps the bridge's MAC address.
var setUpRouted = routeTo(c1) + routeTo(c2)

func routeTo(n int) string {
	return fmt.Sprintf(`
ip link set %[1]s nomaster
ip link set %[1]s address %[2]s
ip addr add %[3]s/32 dev %[1]s
ip route add %[4]s/32 dev %[1]s
ip neigh replace %[4]s lladdr %[5]s dev %[1]s nud permanent
sysctl -q -w net.ipv4.conf.%[1]s.send_redirects=0
`, lab.Port(n), bridgeMAC, routedAddr(n), lab.ContainerAddr(n), nodeMACs[n])
}

// routedAddr is device's address at the port of a routed container.
func routedAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 17, byte(n)}) }

// world is a lab with packet sockets at all ends, with or without a daemon.
type world struct {
	bed    *scontest.Bed
	scon   bool
	makeup makeup
	shell  *shell
	ends   [nodes]*wire
	ct     *conntrack.Client
	nft    *nlmsg.Requests // to ask for the generation of the rules
	built  state           // initial state of each case
	round  byte            // number of the sentinels
}

// settings are the daemon's settings and the world's makeup, selected by a
// case's seed.
type settings struct {
	lease        time.Duration
	leaseMax     time.Duration // drawn for each pair of worlds
	leasePackets int
	pageSlots    int // slots of each page of the table, 0 for all: with few it grows in mid-stream
	makeup
}

// makeup is the structure of a world.
type makeup struct {
	ipv6    bool
	bare    bool // the uplink has no MAC addresses
	ipip    bool // it is an IPIP device
	byRoute bool // which sends each packet to the gateway of its route
	overlay bool // the uplink is a VXLAN device
	bridged bool // the uplink is a bridge
	port    bool // the wire is a port of the containers' bridge: edge is in their network
	routed  bool // the containers are on no bridge
	spread  bool // the default routes are groups of two next hops
	netkit  bool // the containers have netkit pairs
}

// newWorld builds a world that is removed when the test ends.
func newWorld(t *testing.T, scon bool, s settings) *world {
	t.Helper()
	w := &world{scon: scon, makeup: s.makeup}
	w.bed = scontest.New(t, scontest.Layout{Containers: 2, Offload: true, PageSlots: s.pageSlots, IPv6: s.ipv6, Netkit: s.netkit, Config: func(c *config.Config) {
		c.Admit, c.Lease, c.LeaseMax, c.LeasePackets = 2, s.lease, s.leaseMax, s.leasePackets
		if s.pageSlots > 0 {
			c.Connections = 1 << 17 // pages enough
		}
		if s.bridged { // the wire is a bridge port, as a container's
			c.Bridges, c.Uplinks = config.Devices{lab.Bridge}, config.Devices{lab.Uplink}
		}
		if s.port {
			c.Uplinks = config.Devices{lab.Uplink}
		}
	}})
	if s.overlay {
		const device, edge = "192.168.77.1", "192.168.77.2"
		w.bed.Sh(lab.Edge, fmt.Sprintf(overVXLAN, edgeMAC, edge, device))
		w.bed.Sh(lab.Device, fmt.Sprintf(overVXLAN, uplinkMAC, device, edge)+"ip addr add 10.77.0.1/24 dev eth0")
	}
	if s.bridged {
		w.bed.Sh(lab.Device, fmt.Sprintf(overBridge, uplinkMAC))
	}
	if s.port {
		w.bed.Sh(lab.Device, overPort)
		if s.ipv6 {
			w.bed.Sh(lab.Device, overPort6)
		}
	}
	const silent = "ip addr flush dev eth0\n sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1\n"
	w.bed.Sh(lab.Edge, silent+"ip link set eth0 address "+edgeMAC.String())
	for n := c1; n < nodes; n++ {
		w.bed.Sh(nodeNames[n], silent)
	}
	var err error
	if w.shell, err = openShell(w.bed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.shell.close)
	// With a private /run, iptables-legacy's lock is private as well.
	script, script6 := setUpDevice, setUpDevice6
	switch {
	case s.ipip:
		w.ends[edge], err = openIPIP(w.bed, s.byRoute)
		script = setUpBare
	case s.bare:
		w.bed.Sh(lab.Device, "ip link del eth0")
		w.ends[edge] = openBare(w.bed)
		script, script6 = setUpBare, setUpBare6
	}
	if err != nil {
		t.Fatal(err)
	}
	script = "mount -t tmpfs tmpfs /run\n" + script
	if s.ipv6 {
		script += script6
	}
	script = s.onUplink(script)
	if s.routed {
		script += setUpRouted
	}
	if s.spread {
		script += setUpSpread
	}
	if s.spread && s.ipv6 {
		script += setUpSpread6
	}
	if err := w.shell.run(script); err != nil {
		t.Fatal(err)
	}
	if !s.bare && !s.overlay { // packets do not bypass a device with a program
		observe(t, w)
	}
	for n := range w.ends {
		if w.ends[n] != nil {
			continue
		}
		if w.ends[n], err = openWire(w.bed, nodeNames[n]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.ends[n].close)
	}
	if err := w.bed.Do(lab.Device, func() error { w.ct, err = conntrack.Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.ct.Close() })
	if err := w.bed.Do(lab.Device, func() error {
		w.nft, err = nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.nft.Close() })
	if scon {
		w.bed.Up()
		w.bed.WaitHooked(1)
		w.bed.WaitHooked(2)
	}
	if w.built, err = w.current(); err != nil {
		t.Fatal(err)
	}
	return w
}

// sentinelType is an EtherType for experiments, which no rule of a case matches.
const sentinelType = 0x88b5

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// onUplink has commands about IP's uplink name it, and the gateways behind it.
func (m makeup) onUplink(commands string) string {
	if m.byRoute {
		return throughTunnel.Replace(commands)
	}
	if !m.port {
		return commands
	}
	return strings.ReplaceAll(commands, "dev eth0", "dev "+lab.Bridge)
}

// sentinels returns packets that arrive at every end after all earlier packets: at one on
// the bridge from each other one there.
func (m makeup) sentinels(round byte) (frames [nodes][]byte) {
	for n := edge; n < nodes; n++ {
		if n == edge && !m.port {
			frames[edge] = question(round, edgeMAC, lab.DeviceAddr)
			continue
		}
		if m.routed {
			frames[n] = question(round, nodeMACs[n], routedAddr(n))
			continue
		}
		f := slices.Concat(broadcast, nodeMACs[n], make([]byte, 48))
		binary.BigEndian.PutUint16(f[12:], sentinelType)
		f[14] = round
		frames[n] = f
	}
	return frames
}

// question is an ARP request for an address of device from a sender without
// one: device answers and does not remember the sender.
func question(round byte, from net.HardwareAddr, addr netip.Addr) []byte {
	asks := net.HardwareAddr{2, 0, 0, sentinelType >> 8, sentinelType & 0xff, round}
	return slices.Concat(broadcast, from, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, asks, make([]byte, 4),
		make([]byte, 6), addr.AsSlice())
}

// isSentinel reports whether a packet is a round's sentinel.
func isSentinel(c captured, round byte) bool {
	b := []byte(c.data)
	return binary.BigEndian.Uint16(b[12:]) == sentinelType && b[14] == round ||
		binary.BigEndian.Uint16(b[3:]) == sentinelType && b[5] == round
}

// isOwn reports whether device sends a packet on its own at any time:
// multicast membership (IGMP, MLD), ARP and neighbour discovery.
func isOwn(c captured) bool {
	const igmp, hopByHop, icmp6, firstQuery, lastReport = 2, 0, 58, 130, 143
	if isIPv6(c.data) && len(c.data) > ethLen+ip6Len+8 {
		at, next := ethLen+ip6Len, c.data[ethLen+6]
		if next == hopByHop {
			at, next = at+8, c.data[at]
		}
		return next == icmp6 && c.data[at] >= firstQuery && c.data[at] <= lastReport
	}
	return c.data[12:14] == "\x08\x06" || len(c.data) > ethLen+9 && c.data[12:14] == "\x08\x00" && c.data[ethLen+9] == igmp
}

// collect returns the packets that have arrived at the ends since the last call, in order.
// Packets are processed in order, hop by hop; two rounds of sentinels follow
// them over the maximum number of hops.
func (w *world) collect() (got []captured, err error) {
	var arrived [nodes]int
	each := 1 // of a round's sentinels arrive at an end
	if w.makeup.port {
		each = nodes - 1
	}
	for round := 1; round <= 2; round++ {
		w.round++
		for n, frame := range w.makeup.sentinels(w.round) {
			if err := w.ends[n].send(offload{}, frame); err != nil {
				return nil, err
			}
		}
		for n, end := range slices.Backward(w.ends[:]) {
			if end.bare {
				// Packets for device itself are processed when the containers' are.
				if got, err = end.drain(n, got); err != nil {
					return nil, err
				}
				continue
			}
			for deadline := time.Now().Add(scontest.Patience); arrived[n] < round*each; {
				c, ok, err := end.receive()
				if err != nil {
					return nil, err
				}
				switch {
				case !ok && time.Now().After(deadline):
					return nil, fmt.Errorf("no sentinel arrives at %s", nodeNames[n])
				case !ok:
					if err := end.await(time.Second); err != nil {
						return nil, err
					}
				case isSentinel(c, w.round):
					arrived[n]++
				case isOwn(c):
				default:
					c.to = n
					got = append(got, c)
				}
			}
		}
	}
	// Packets of the first round arrived before those of the second.
	slices.SortStableFunc(got, func(a, b captured) int { return a.to - b.to })
	return got, nil
}

// generation returns how far the daemon has followed changes.
func (w *world) generation() (g generation, err error) {
	s, err := w.bed.Daemon.Status()
	if err != nil {
		return g, err
	}
	var metrics strings.Builder
	if err := w.bed.Daemon.Metrics(&metrics); err != nil {
		return g, err
	}
	g = generation{decisions: s.Generation, rules: s.Rules.Generation, unknown: s.Rules.Unknown}
	for line := range strings.Lines(metrics.String()) {
		if strings.HasPrefix(line, "scon_changes_total{") {
			g.changes += line
		}
	}
	return g, nil
}

// generation is that of decisions and of nftables' rules, the changes that the daemon has
// heard of, and how long rules were not known: not every change makes all decisions stale.
type generation struct {
	decisions, rules uint32
	changes          string
	unknown          float64
}

// noticing is the timeout for the daemon to process a change that may have no effect.
const noticing = time.Second

// settle waits until the daemon has processed a change: until it has followed the
// kernel's rules, or else until it has heard of something. Some changes have
// no effect.
func (w *world) settle(before generation) error {
	rules, err := w.rulesGeneration()
	if err != nil {
		return err
	}
	patience := noticing
	if rules != before.rules {
		patience = scontest.Patience
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		now, err := w.generation()
		if err != nil || now.rules == rules && now != before {
			return err
		}
	}
	if rules != before.rules {
		return fmt.Errorf("the daemon does not follow the rules to generation %d", rules)
	}
	return nil
}

// rulesGeneration returns the kernel's generation of nftables' rules.
func (w *world) rulesGeneration() (id uint32, err error) {
	const genID = 1 // NFTA_GEN_ID
	err = w.nft.Request(nlmsg.Request{
		Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Data: make([]byte, nlmsg.SizeofNfgenmsg),
	}, func(m nlmsg.Message) {
		for typ, data := range nlmsg.Attributes(m.Data[min(nlmsg.SizeofNfgenmsg, len(m.Data)):]) {
			if typ == genID && len(data) == 4 {
				id = binary.BigEndian.Uint32(data)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables' generation: %w", err)
	}
	return id, nil
}

// calm waits until the daemon has processed the effects of packets: Conentries
// exist only for connections in conntrack, and the generation is stable.
func (w *world) calm() error {
	last, err := w.generation()
	for deadline := time.Now().Add(scontest.Patience); err == nil; {
		time.Sleep(2 * time.Millisecond)
		now, quiet := generation{}, false
		if now, err = w.generation(); err != nil {
			break
		}
		if quiet, err = w.tracked(); err == nil && quiet && now == last {
			return nil
		}
		last = now
		if time.Now().After(deadline) {
			return errors.New("the daemon keeps Conentries of connections that have ended")
		}
	}
	return err
}
