package differential

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/scon-project/scon/test/bed/lab"
)

// A stream of changes: each is made between the same two packets in both worlds, and
// the daemon has followed the kernel before the next packet. So what differs is what the
// rules and the network decide.

// stream generates changes of every kind that follow each other as fast as the tools
// make them, which is some 50 a second, and packets after each.
func (g *generator) stream() {
	g.late(&change{Script: g.churn("")})
	g.admit()
	var undo []*change
	for i := range 8 + g.r.IntN(17) {
		if n := len(undo); n > 0 && g.r.IntN(3) == 0 {
			at := g.r.IntN(n)
			g.late(undo[at])
			undo = append(undo[:at], undo[at+1:]...)
		} else {
			c := g.anyChange(i)
			g.late(c)
			if c.Undo != "" {
				// Another change may have taken it back.
				undo = append(undo, &change{Script: fmt.Sprintf("{ %s\n} 2>/dev/null || true", c.Undo), Quiet: c.Quiet})
			}
		}
		switch g.r.IntN(4) {
		case 0:
			g.admit()
		case 1:
			g.rounds(jiffies, 2)
		default:
			g.rounds(0, 1)
		}
	}
}

// late adds a change that the daemon has processed before the next packet.
func (g *generator) late(c *change) {
	c.AtOnce = false
	if g.ipv6 {
		c.Script, c.Undo = churnOverIPv6.Replace(c.Script), churnOverIPv6.Replace(c.Undo)
	}
	g.Steps = append(g.Steps, step{Change: c})
}

// churnOverIPv6 translates the table of stream.
var churnOverIPv6 = strings.NewReplacer("ip saddr @", "ip6 saddr @", "ip daddr vmap", "ip6 daddr vmap", "ipv4_addr", "ipv6_addr", "203.0.113.", "2001:db8:113::")

// churn is a table of its own with all that may change in one, and more commands in the
// same transaction. The chain base looks into sets and maps, and leads to the chain side.
func (g *generator) churn(more string) string {
	return fmt.Sprintf(`nft -f - <<'END'
table %[1]s churn {
 set addrs { type ipv4_addr; flags interval; }
 set others { type ipv4_addr; }
 map verdicts { type ipv4_addr : verdict; }
 chain side { }
 chain base {
  type filter hook forward priority 10
 }
}
flush chain %[1]s churn base
add rule %[1]s churn base ip saddr @addrs drop
add rule %[1]s churn base ip saddr @others meta mark set 7
add rule %[1]s churn base ip daddr vmap @verdicts
add rule %[1]s churn base jump side
%[2]s
END`, g.family(), more)
}

// family is that of the table churn.
func (g *generator) family() string {
	if g.ipv6 {
		return "ip6"
	}
	return "ip"
}

// anyChange generates a change of any kind. i tells it from others of the case.
func (g *generator) anyChange(i int) *change {
	all := []struct {
		weight int
		make   func(i int) *change
	}{
		{6, g.ruleComes}, {4, g.elementComes}, {3, g.chainComes}, {3, g.baseComes}, {2, g.tableComes}, {2, g.flushes},
		{3, g.equalReplaces}, {3, g.linkChanges}, {4, func(int) *change { return g.change() }},
	}
	sum := 0
	for _, x := range all {
		sum += x.weight
	}
	n := g.r.IntN(sum)
	for _, x := range all {
		if n -= x.weight; n < 0 {
			return x.make(i)
		}
	}
	panic("no change")
}

// ruleComes inserts a rule about one of the connections, or one that concerns none.
func (g *generator) ruleComes(i int) *change {
	if g.r.IntN(2) == 0 {
		c := xtChains[g.r.IntN(len(xtChains))]
		r := rule{Chain: c.name, Text: fmt.Sprintf("ip daddr 203.0.113.%d drop", i)}
		if c.name == "pre_nat" || c.name == "post_nat" {
			r.Text = fmt.Sprintf("ip daddr 203.0.113.%d accept", i)
		}
		if g.Rules.Tool != nft {
			r.Text = fmt.Sprintf("-d 203.0.113.%d -j %s", i, map[bool]string{true: "ACCEPT", false: "MARK --set-mark 3"}[strings.Contains(c.xt, "nat") || strings.Contains(c.xt, "filter") || strings.Contains(c.xt, "raw")])
		}
		if g.ipv6 {
			r.Text, _ = forIPv6(churnOverIPv6.Replace(r.Text))
		}
		return g.comes(r, i)
	}
	return g.comes(g.lateFeature(), i)
}

// comes inserts a rule, which can be deleted again.
func (g *generator) comes(r rule, i int) *change {
	c := chainOf(r.Chain)
	if g.Rules.Tool != nft {
		table, name, _ := strings.Cut(c.xt, " ")
		return &change{Script: g.Rules.insert(r), Undo: g.Rules.amend(table, "-D "+name+" "+r.Text)}
	}
	mark := fmt.Sprintf("change%d", i)
	r.Text += fmt.Sprintf(" comment %q", mark)
	words := strings.SplitN(strings.Replace(c.nft, "FAMILY", g.Rules.Family, 1), " ", 3)
	where := words[0] + " " + words[1] + " " + c.name
	return &change{Script: g.Rules.insert(r), Undo: fmt.Sprintf(`nft delete rule %s handle $(nft -a list chain %s | sed -n 's/.*"%s" # handle //p')`, where, where, mark)}
}

// addr is an address of one of the connections, or one that none has.
func (g *generator) addr(i int) string {
	c := g.Conns[g.r.IntN(len(g.Conns))]
	switch g.r.IntN(4) {
	case 0:
		return c.Src.Addr().String()
	case 1:
		return c.Dst.Addr().String()
	default:
		return fmt.Sprintf("203.0.113.%d", i)
	}
}

// elementComes adds an element to a set or a map, in place of another one of that key.
func (g *generator) elementComes(i int) *change {
	set := []string{"addrs", "others", "verdicts"}[g.r.IntN(3)]
	key := g.addr(i)
	value := ""
	if set == "verdicts" {
		value = " : " + []string{"drop", "accept", "jump side", "goto side"}[g.r.IntN(4)]
	}
	gone := fmt.Sprintf("nft delete element %s churn %s { %s }", g.family(), set, key)
	return &change{
		Script: fmt.Sprintf("%s 2>/dev/null || true\nnft add element %s churn %s { %s%s }", gone, g.family(), set, key, value),
		Undo:   gone,
	}
}

// chainComes adds a chain with a rule, and a way to it.
func (g *generator) chainComes(i int) *change {
	text := g.someRule(i)
	return &change{
		Script: fmt.Sprintf("nft -f - <<'END'\nadd chain %[1]s churn c%[2]d\nadd rule %[1]s churn c%[2]d %[3]s\nadd rule %[1]s churn side jump c%[2]d\nEND", g.family(), i, text),
		Undo:   fmt.Sprintf("nft flush chain %[1]s churn side; nft flush chain %[1]s churn c%[2]d; nft delete chain %[1]s churn c%[2]d", g.family(), i),
	}
}

// someRule is the text of a rule of nft in a chain that sees forwarded packets.
func (g *generator) someRule(i int) string {
	text := fmt.Sprintf("ip daddr 203.0.113.%d drop", i)
	switch g.r.IntN(6) {
	case 0:
		text = "ip daddr " + g.addr(i) + " meta mark set 7"
	case 1:
		text = "ip saddr " + g.addr(i) + " drop"
	case 2:
		text = "ip saddr " + g.addr(i) + " ip dscp set 12"
	case 3:
		g.tracking = true
		text = "ct state new accept"
	}
	if g.ipv6 {
		text = overIPv6.Replace(churnOverIPv6.Replace(text))
	}
	return text
}

// baseComes adds a base chain, of any type and policy, with or without rules.
func (g *generator) baseComes(i int) *change {
	head := []string{
		"type filter hook forward priority 20", "type filter hook forward priority 20; policy drop", "type filter hook prerouting priority -140",
		"type filter hook postrouting priority 20", "type nat hook prerouting priority -90", "type nat hook postrouting priority 110",
		"type filter hook input priority 20", "type filter hook output priority 20",
	}[g.r.IntN(8)]
	text := ""
	if g.r.IntN(2) == 0 && !strings.Contains(head, "nat") {
		text = g.someRule(i)
	}
	if strings.Contains(head, "nat") {
		g.tracking = true
	}
	add := ""
	if text != "" {
		add = fmt.Sprintf("add rule %s churn b%d %s", g.family(), i, text)
	}
	return &change{
		Script: fmt.Sprintf("nft -f - <<'END'\nadd chain %s churn b%d { %s; }\n%s\nEND", g.family(), i, head, add),
		Undo:   fmt.Sprintf("nft flush chain %[1]s churn b%[2]d; nft delete chain %[1]s churn b%[2]d", g.family(), i),
	}
}

// tableComes adds a table, or one that sleeps and is woken up later.
func (g *generator) tableComes(i int) *change {
	if g.r.IntN(3) == 0 {
		return &change{
			Script: fmt.Sprintf("nft -f - <<'END'\ntable %s t%d {\n flags dormant;\n chain f {\n  type filter hook forward priority 30\n  %s\n }\n}\nEND", g.family(), i, g.someRule(i)),
			Undo:   fmt.Sprintf("nft add table %s t%d", g.family(), i),
		}
	}
	return &change{
		Script: fmt.Sprintf("nft -f - <<'END'\ntable %s t%d {\n chain f {\n  type filter hook forward priority 30\n  %s\n }\n}\nEND", g.family(), i, g.someRule(i)),
		Undo:   fmt.Sprintf("nft delete table %s t%d", g.family(), i),
	}
}

// flushes empties a chain, the table churn, or a chain of the case's rules.
func (g *generator) flushes(int) *change {
	switch g.r.IntN(4) {
	case 0:
		return &change{Script: fmt.Sprintf("nft flush chain %s churn side", g.family())}
	case 1:
		return &change{Script: fmt.Sprintf("nft flush table %s churn", g.family()), Undo: g.churn("")}
	case 2:
		return &change{Script: fmt.Sprintf("nft flush set %s churn addrs", g.family())}
	default:
		if g.Rules.texts("forward_filter") == nil {
			return &change{Script: g.churn("")}
		}
		return &change{Script: g.Rules.flush("forward_filter")}
	}
}

// equalReplaces replaces all rules by equal ones, with the states that they print.
func (g *generator) equalReplaces(int) *change {
	if g.Rules.Tool == nft || g.r.IntN(3) == 0 && g.Rules.Tool == legacy {
		return &change{Script: "{ echo flush ruleset; nft list ruleset; } >/run/rules; nft -f /run/rules"}
	}
	save := strings.Replace(g.Rules.restore(), "-restore", "-save", 1)
	return &change{Script: fmt.Sprintf("%s >/run/rules; %s /run/rules", save, g.Rules.restore())}
}

// linkChanges changes devices, a bridge's table and settings.
func (g *generator) linkChanges(i int) *change {
	ports := []int{c1, c2}
	if g.port {
		ports = append(ports, edge)
	}
	at := g.r.IntN(len(ports))
	n, other := ports[at], ports[(at+1)%len(ports)]
	switch g.r.IntN(8) {
	case 0:
		return &change{Script: fmt.Sprintf("ip link add d%[1]d type veth peer name e%[1]d; ip link set d%[1]d up; ip link set e%[1]d up", i), Undo: fmt.Sprintf("ip link del d%d", i)}
	case 1:
		if g.routed {
			break
		}
		return &change{Script: fmt.Sprintf("ip link add d%[1]d type veth peer name e%[1]d; ip link set d%[1]d master docker0 up; ip link set e%[1]d up", i), Undo: fmt.Sprintf("ip link del d%d", i)}
	case 2:
		if g.routed {
			break
		}
		return &change{
			Script: fmt.Sprintf("bridge fdb replace %v dev %s master static", nodeMACs[n], portOf(other)),
			Undo:   fmt.Sprintf("bridge fdb del %v dev %s master", nodeMACs[n], portOf(other)),
		}
	case 3:
		if g.routed {
			break
		}
		return &change{
			Script: fmt.Sprintf("bridge fdb replace 02:00:00:00:99:%02x dev %s master static", i, portOf(n)),
			Undo:   fmt.Sprintf("bridge fdb del 02:00:00:00:99:%02x dev %s master", i, portOf(n)),
		}
	case 4:
		if g.routed {
			break
		}
		return &change{
			Script: fmt.Sprintf("bridge link set dev %s learning off flood off", portOf(n)),
			Undo:   fmt.Sprintf("bridge link set dev %s learning on flood on", portOf(n)),
		}
	case 5:
		return &change{Script: "sysctl -q -w net.ipv4.conf.eth0.rp_filter=1", Undo: "sysctl -q -w net.ipv4.conf.eth0.rp_filter=0"}
	case 6:
		if g.ipv6 {
			break
		}
		return &change{Script: "sysctl -q -w net.ipv4.conf.eth0.forwarding=0", Undo: "sysctl -q -w net.ipv4.conf.eth0.forwarding=1"}
	}
	to := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
	return &change{Script: fmt.Sprintf("ip route replace blackhole %v", to), Undo: fmt.Sprintf("ip route del blackhole %v", to)}
}

// portOf is the port of the containers' bridge that a node is behind.
func portOf(n int) string {
	if n == edge {
		return lab.Uplink
	}
	return lab.Port(n)
}
