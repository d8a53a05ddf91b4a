package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/scon-project/scon/test/bed/lab"
)

// change is a change of device during a case. It is one event for the daemon: once
// the daemon has processed its first message, it has processed all.
type change struct {
	Script string
	Undo   string
	// Quiet is set if it changes only connections: the generation stays.
	Quiet bool
	// AtOnce is set if packets may follow before the daemon has processed it:
	// their fate does not affect later packets.
	AtOnce bool
	// Tracks is set if conntrack may see no packet before: the first one afterwards decides which
	// direction is the original one, so that the daemon has to have processed it.
	Tracks bool
}

func (c change) String() string {
	when := ""
	if c.AtOnce {
		when = ", with packets at once"
	}
	return fmt.Sprintf("change%s:\n%s", when, c.Script)
}

// change generates a change that may affect the connections.
func (g *generator) change() *change {
	change := g.plainChange()
	if g.ipv6 {
		change.Script, change.Undo = changeOverIPv6.Replace(change.Script), changeOverIPv6.Replace(change.Undo)
	}
	change.Script, change.Undo = g.onUplink(change.Script), g.onUplink(change.Undo)
	return change
}

// changeOverIPv6 translates changes of IPv4 to IPv6, whose minimum MTU is
// 1280.
var changeOverIPv6 = strings.NewReplacer("10.77.0.", "fd00:77::", "172.17.0.2", "fd00:17::2", "172.17.0.3", "fd00:17::3",
	"ip rule", "ip -6 rule", "route flush", "-6 route flush", "conntrack -D", "conntrack -D -f ipv6",
	"mtu lock 700", "mtu lock 1290", "mtu 900", "mtu 1290")

func (g *generator) plainChange() *change {
	c := g.Conns[g.r.IntN(len(g.Conns))]
	remote := g.remoteOf(c)
	switch g.r.IntN(16) {
	case 0:
		return &change{Quiet: true, Script: "conntrack -F >/dev/null 2>&1"}
	case 1, 2:
		return &change{Quiet: true, Script: fmt.Sprintf("conntrack -D -p %s --orig-port-src %d >/dev/null 2>&1 || true",
			strings.ToLower(c.Proto.String()), c.Src.Port())}
	case 3:
		return &change{AtOnce: true, Script: fmt.Sprintf("ip route replace %v via 10.77.0.9 dev eth0", remote),
			Undo: g.restoreRoute(remote)}
	case 4:
		// The kernel rate-limits its answers about other unreachable routes.
		return &change{AtOnce: true, Script: fmt.Sprintf("ip route replace blackhole %v", remote),
			Undo: g.restoreRoute(remote)}
	case 5:
		return &change{AtOnce: true, Script: fmt.Sprintf("ip route replace %v via 10.77.0.2 dev eth0 mtu lock 700", remote),
			Undo: g.restoreRoute(remote)}
	case 6:
		if g.bare { // without neighbours
			return &change{AtOnce: true, Script: "ip link set eth0 txqueuelen 400", Undo: "ip link set eth0 txqueuelen 500"}
		}
		return &change{AtOnce: true, Script: "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:e5 dev eth0 nud permanent",
			Undo: "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:e0 dev eth0 nud permanent"}
	case 7:
		return &change{AtOnce: true, Script: "ip link set eth0 mtu 900", Undo: "ip link set eth0 mtu 1500"}
	case 8:
		return &change{AtOnce: true, Script: "ip rule add from 172.17.0.2 lookup 105 pref 99 2>/dev/null || true", Undo: "ip rule del pref 99"}
	case 9:
		if g.Rules.texts("forward_filter") != nil {
			return &change{Script: g.Rules.flush("forward_filter")}
		}
		fallthrough
	default:
		before := g.tracking
		r := g.lateFeature()
		return &change{Script: g.Rules.insert(r), AtOnce: !g.counting, Tracks: g.tracking && !before}
	}
}

// remoteOf returns the address that a route to the other end of a container's connection
// leads to.
func (g *generator) remoteOf(c conn) netip.Addr {
	if c.From == edge {
		return c.Src.Addr()
	}
	return c.Dst.Addr()
}

// lateFeature generates a rule that may come in mid-stream.
func (g *generator) lateFeature() rule {
	r := g.feature()
	for r.needsLease() || r.blindsConntrack() && !g.Liberal {
		r = g.feature()
	}
	g.note(r)
	return r
}

// restoreRoute undoes a change of the route to an address. A routed container
// has a route of its own.
func (g *generator) restoreRoute(to netip.Addr) string {
	for n := c1; g.routed && n < nodes; n++ {
		if to == lab.ContainerAddr(n) {
			return fmt.Sprintf("ip route replace %v/32 dev %s", to, lab.Port(n))
		}
	}
	return fmt.Sprintf("ip route flush exact %v", to)
}

// blindsConntrack reports whether a rule hides packets from conntrack, or from a
// connection's entry, so that later ones are outside of the window that it knows.
func (r rule) blindsConntrack() bool {
	return slices.ContainsFunc([]string{"notrack", "zone set", "--zone"}, func(words string) bool { return strings.Contains(r.Text, words) })
}

// needsLease reports whether a rule depends on conntrack's counters, which
// lack the express packets before the rule, or on conntrack's marks, by which a
// packet of one direction affects the other direction. Such effects begin when a
// lease ends.
func (r rule) needsLease() bool {
	return slices.ContainsFunc([]string{"connbytes", "ct avgpkt", "ct label", "diffset", "ct original packets", "ct original bytes", "ct reply packets", "ct mark set", "CONNMARK"},
		func(words string) bool { return strings.Contains(r.Text, words) })
}

// insert inserts a rule at the start of its chain.
func (r ruleset) insert(first rule) string {
	c := chainOf(first.Chain)
	if r.Tool == nft {
		words := strings.SplitN(strings.Replace(c.nft, "FAMILY", r.Family, 1), " ", 3)
		return fmt.Sprintf("nft -f - <<'END'\ntable %s %s {\n%s chain %s {\n  %s\n }\n}\ninsert rule %s %s %s %s\nEND",
			words[0], words[1], r.sets(), c.name, words[2], words[0], words[1], c.name, first.Text)
	}
	table, name, _ := strings.Cut(c.xt, " ")
	return r.amend(table, "-I "+name+" 1 "+first.Text)
}

// flush empties a chain.
func (r ruleset) flush(chain string) string {
	c := chainOf(chain)
	if r.Tool == nft {
		words := strings.SplitN(strings.Replace(c.nft, "FAMILY", r.Family, 1), " ", 3)
		return fmt.Sprintf("nft -f - <<'END'\ntable %s %s {\n%s chain %s {\n  %s\n }\n}\nflush chain %s %s %s\nEND",
			words[0], words[1], r.sets(), c.name, words[2], words[0], words[1], c.name)
	}
	table, name, _ := strings.Cut(c.xt, " ")
	return r.amend(table, "-F "+name)
}

// amend changes one table with iptables-restore.
func (r ruleset) amend(table, line string) string {
	return fmt.Sprintf("%s --noflush <<'END'\n*%s\n%s\nCOMMIT\nEND", r.restore(), table, line)
}

func chainOf(name string) chain {
	for _, c := range chains {
		if c.name == name {
			return c
		}
	}
	panic("no chain " + name)
}
