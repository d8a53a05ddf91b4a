package differential

import (
	"fmt"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
)

// topic is what the cases of a test are about: of all that cases have, they have more
// of this. The zero topic prefers nothing.
type topic struct {
	features []feature
	kinds    []kind
	function bool // a function that is no rule judges packets at a hook
	holds    bool // a neighbour does not answer while rules change
	stream   bool // changes of every kind follow each other between packets
	nested   bool // rules stand in chains that other chains lead to
	short    bool // connections begin and end again and again
	// The minimum share of express packets among the valid packets of established
	// connections, for each makeup and for all together. With fewer, the comparison
	// proves nothing.
	leastExpress, leastOfAll float64
}

// What keeps connections regular is more frequent about the topics.
var (
	everything     = topic{leastExpress: 0.2, leastOfAll: 0.1}
	aboutFunctions = topic{function: true, leastOfAll: everything.leastOfAll / 3} // as many cases can go express
	aboutPorts     = topic{features: ofPorts, kinds: ofPlace, leastOfAll: 0.05}
	aboutChanges   = topic{stream: true, leastOfAll: 0.05}
	aboutTies      = topic{features: ofPorts[:dropping], kinds: ofPlace, holds: true, leastOfAll: 0.05}
)

// ofTopic is the number of cases of a topic: less than of all, one to replay it.
func ofTopic() int { return max(1, *cases/20) }

// Functions at Netfilter's hooks, which are no rules, judge every packet that passes
// them.
func TestDifferentialFunctions(t *testing.T) {
	needFunctions(t)
	compareFates(t, variants, aboutFunctions, ofTopic())
}

// Rules and chains distinguish the ports of one bridge.
func TestDifferentialPorts(t *testing.T) { compareFates(t, variants, aboutPorts, ofTopic()) }

// Changes of every kind follow each other as fast as the tools make them, with packets
// between them.
func TestDifferentialChanges(t *testing.T) { compareFates(t, variants, aboutChanges, ofTopic()) }

// Packets are equal in all that a tie has, come by other ports, and are held back by a
// neighbour while rules change.
func TestDifferentialTies(t *testing.T) { compareFates(t, variants, aboutTies, ofTopic()) }

// dropping is the number of the first rules of ofPorts, which drop.
const dropping = 8

// ofPorts are rules that name a port, or stand at one. Sentinels pass all of them.
var ofPorts = []feature{
	{"port_ingress", "ip protocol udp drop", ""},
	{"port_ingress", "meta l4proto { tcp, udp } drop", ""},
	{"bridge_pre", "iifname veth1 ip protocol udp drop", ""},
	{"bridge_pre", "iifname veth2 meta l4proto { tcp, udp } drop", ""},
	{"bridge_in", "iifname veth1 meta l4proto { tcp, udp } drop", ""},
	{"bridge_forward", "iifname veth1 oifname veth2 meta l4proto { tcp, udp } drop", ""},
	{"forward_filter", "", "-m physdev --physdev-in veth1 -j DROP"},
	{"forward_filter", "THERE drop", "-m physdev --physdev-in veth2 --physdev-out veth1 -j DROP"},
	{"port_ingress", "ip length > 150 drop", ""},
	{"port_ingress", "meta mark set 5", ""},
	{"bridge_pre", "iifname veth1 meta mark set 5", ""},
	{"bridge_post", "oifname veth1 ip protocol tcp drop", ""},
	{"bridge_post", "oifname veth2 ip dscp set 20", ""},
	{"pre_mangle", "", "-m physdev --physdev-in veth1 -j MARK --set-mark 5"},
	{"pre_raw", "", "-m physdev ! --physdev-in veth1 -p udp -j CT --notrack"},
	{"post_mangle", "", "-m physdev --physdev-is-bridged --physdev-out veth2 -j DSCP --set-dscp 20"},
}

// ofPlace are packets that differ from a connection's own in where they are, or come
// from, alone.
var ofPlace = []kind{
	{"equal datagrams", 2, func(m *maker) {
		for range 2 + m.r.IntN(3) {
			m.equal(m.views[m.dir].node)
		}
	}},
	{fromAnotherPort, 2, func(m *maker) {
		node := m.views[m.dir].node
		if node == edge {
			return
		}
		for range 1 + m.r.IntN(3) {
			m.equal(node)
			m.equal(c1 + c2 - node)
		}
		m.equal(node)
	}},
}

// fromAnotherPort packets move a connection's address to another port for a while.
const fromAnotherPort = "equal datagrams from another port"

// equal adds a datagram without an IP id, from a node that may not be its sender. All
// of an item are equal.
func (m *maker) equal(node int) {
	if m.isTCP() {
		return
	}
	f := m.form(m.dir, 0, []byte("equal to the others"))
	f.from = nodeMACs[node]
	m.frame(f.bytes()).node = node
}

// held generates packets that wait for a neighbour while a rule comes, equal ones that
// the rule meets, and the neighbour's answer.
func (g *generator) held() {
	hold, release := g.neighbour()
	g.happens(&change{Script: hold, Undo: release})
	var equal step
	for i := range g.Conns {
		for dir := range 2 {
			g.item(&equal, "data", i, dir)
			g.item(&equal, ofPlace[0].name, i, dir)
		}
	}
	g.Steps = append(g.Steps, equal)
	r := g.lateFeature()
	g.happens(&change{Script: g.Rules.insert(r)})
	var again step
	for _, it := range equal.Items {
		if it.Kind != "data" {
			again.Items = append(again.Items, it)
		}
	}
	g.Steps = append(g.Steps, again)
	g.happens(&change{Script: release})
	g.rounds(jiffies, 2)
}

// neighbour returns commands that make device forget a neighbour, and know it again.
func (g *generator) neighbour() (hold, release string) {
	addr, mac, dev := "10.77.0.2", edgeMAC, lab.Uplink
	if g.port {
		dev = lab.Bridge
	}
	if n := g.r.IntN(3); n != edge || g.bare {
		n = max(n, c1)
		addr, mac, dev = lab.ContainerAddr(n).String(), nodeMACs[n], lab.Bridge
		if g.routed {
			dev = lab.Port(n)
		}
	}
	hold = fmt.Sprintf("ip neigh del %s dev %s", addr, dev)
	release = fmt.Sprintf("ip neigh replace %s lladdr %v dev %s nud permanent", addr, mac, dev)
	if g.ipv6 {
		hold, release = changeOverIPv6.Replace(hold), changeOverIPv6.Replace(release)
	}
	return hold, release
}
