package differential

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Rulesets of several chains: base chains lead to others by jumps, gotos and verdict maps, what
// these return goes on, and what no rule of the last one accepts is dropped.

var aboutNested = topic{nested: true, leastOfAll: 0.05}

// Rules stand in chains of their own, to which conditions of every kind lead.
func TestDifferentialNested(t *testing.T) { compareFates(t, variants, aboutNested, ofTopic()) }

// ofChains are rules that end one chain, or that matter to those after it; byPacket are such
// that judge single packets.
var (
	ofChains = []feature{
		{"forward_filter", "THERE return", "THERE -j RETURN"},
		{"forward_filter", "ct state established return", "-m conntrack --ctstate ESTABLISHED -j RETURN"},
		{"forward_filter", "meta mark 5 return", "-m mark --mark 5 -j RETURN"},
		{"forward_filter", "THERE accept", "THERE -j ACCEPT"},
		{"forward_filter", "BACK drop", "BACK -j DROP"},
		{"forward_filter", "meta mark 5 drop", "-m mark --mark 5 -j DROP"},
		{"forward_late", "THERE drop", ""},
		{"forward_late", "ct state established accept", ""},
		{"forward_late", "meta mark 5 drop", ""},
		{"forward_mangle", "THERE return", "THERE -j RETURN"},
		{"forward_mangle", "THERE accept", "THERE -j ACCEPT"},
		{"forward_mangle", "ct direction reply ip dscp set 20", "-m conntrack --ctdir REPLY -j DSCP --set-dscp 20"},
		{"pre_mangle", "THERE meta mark set 5 return", "THERE -j MARK --set-mark 5"},
		{"pre_mangle", "ct state established meta mark set 0", "-m conntrack --ctstate ESTABLISHED -j MARK --set-mark 0"},
		{"pre_mangle", "BACK return", "BACK -j RETURN"},
		{"post_mangle", "THERE return", "THERE -j RETURN"},
		{"post_mangle", "ip dscp set 30", "-j DSCP --set-dscp 30"},
		{"pre_raw", "THERE return", "THERE -j RETURN"},
		{"bridge_pre", "ip protocol udp ip saddr 172.17.0.2 return", ""},
		{"bridge_pre", "ip saddr 172.17.0.2 ip protocol udp drop", ""},
	}
	byPacket = []feature{
		{"forward_filter", "ip dscp 10 return", "-m dscp --dscp 10 -j RETURN"},
		{"forward_filter", "ip length > 150 accept", "-m length --length 150:65535 -j ACCEPT"},
		{"forward_late", "ip dscp 10 drop", ""},
		{"pre_mangle", "ip dscp 10 meta mark set 5 accept", "-m dscp --dscp 10 -j MARK --set-mark 5"},
		{"bridge_pre", "ip dscp 10 return", ""},
		{"ingress", "ip dscp 10 return", ""},
		{"ingress", "ip length > 300 drop", ""},
	}
)

// jump leads from a chain to another one, the side.
type jump struct {
	Text string // SIDE stands for the side's name
	From int    // the side that it leaves; 0 for the base chain
}

// jumps lead to all chains, jumpsOfIP to those of IP's hooks where conntrack has seen the packet.
var (
	jumps = []feature{
		{"", "jump SIDE", "-j SIDE"},
		{"", "goto SIDE", "-g SIDE"},
		{"", "meta l4proto { tcp, udp } jump SIDE", "-p udp -j SIDE"},
		{"", "ip saddr vmap { 172.17.0.2 : jump SIDE, 172.17.0.3 : goto SIDE }", "-s 172.17.0.2 -g SIDE"},
		{"", "ip saddr != 172.17.0.2 jump SIDE", "! -s 172.17.0.2 -j SIDE"},
	}
	jumpsOfIP = []feature{
		{"", "meta mark 0 jump SIDE", "-m mark --mark 0 -j SIDE"},
		{"", "ct state vmap { new : jump SIDE, established : goto SIDE, related : jump SIDE }", "-m conntrack --ctstate NEW,ESTABLISHED -g SIDE"},
		{"", "ct state established jump SIDE", "-m conntrack --ctstate ESTABLISHED -j SIDE"},
		{"", "ct state new jump SIDE", "-m conntrack --ctstate NEW -j SIDE"},
		{"", "ct direction original goto SIDE", "-m conntrack --ctdir ORIGINAL -g SIDE"},
		{"", "ct direction vmap { original : jump SIDE, reply : jump SIDE }", "-m conntrack --ctdir REPLY -j SIDE"},
		{"", "ct mark 0 jump SIDE", "-m connmark --mark 0 -j SIDE"},
		{"", "ct status dnat jump SIDE", "-m conntrack --ctstate DNAT -j SIDE"},
		{"", "ct status assured goto SIDE", "-m conntrack --ctstatus ASSURED -g SIDE"},
		{"", "THERE goto SIDE", "THERE -g SIDE"},
		{"", "BACK jump SIDE", "BACK -j SIDE"},
		{"", "iifname docker0 jump SIDE", "-s 172.17.0.0/16 -j SIDE"},
		{"", "iifname vmap { eth0 : goto SIDE, docker0 : jump SIDE }", "-d 172.17.0.0/16 -g SIDE"},
		{"", "meta mark set 5 jump SIDE", "-m mark ! --mark 5 -j SIDE"},
	}
	jumpsByPacket = []feature{
		{"", "ip dscp 10 jump SIDE", "-m dscp --dscp 10 -j SIDE"},
		{"", "ip dscp != 10 goto SIDE", "-m dscp ! --dscp 10 -g SIDE"},
		{"", "meta length > 150 jump SIDE", "-m length --length 150:65535 -j SIDE"},
		{"", "limit rate 1/hour burst 20 packets jump SIDE", "-m limit --limit 1/hour --limit-burst 20 -j SIDE"},
		{"", "numgen inc mod 3 0 goto SIDE", "-m statistic --mode nth --every 3 --packet 0 -j SIDE"},
	}
)

// accepting are what a ruleset ends with whose policy is to drop.
var accepting = []feature{
	{"forward_filter", "ct state vmap { established : accept, related : accept, new : accept }", "-m conntrack --ctstate NEW,ESTABLISHED,RELATED -j ACCEPT"},
	{"forward_filter", "ct state established,related accept\n  meta l4proto { tcp, udp } ct state new accept", "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n-A FORWARD -m conntrack --ctstate NEW -j ACCEPT"},
	{"forward_filter", "meta l4proto { tcp, udp } accept", "-p tcp -j ACCEPT\n-A FORWARD -p udp -j ACCEPT"},
	{"forward_filter", "THERE accept\n  BACK accept", "THERE -j ACCEPT\n-A FORWARD BACK -j ACCEPT"},
}

// nest moves rules of some chains to sides, two levels deep, and may have the rest dropped.
func (g *generator) nest() {
	single := g.r.IntN(4) == 0 // rules judge single packets
	for range 2 + g.r.IntN(3) {
		g.addOneOf(ofChains)
	}
	if single {
		g.addOneOf(byPacket)
	}
	for _, c := range chains {
		if g.Rules.texts(c.name) == nil || g.r.IntN(3) == 0 {
			continue
		}
		from := 0
		for range 1 + g.r.IntN(2) {
			g.Rules.Jumps = append(g.Rules.Jumps, jump{g.jump(c, single), from})
			side := len(g.Rules.Jumps)
			for i := range g.Rules.Rules {
				if r := &g.Rules.Rules[i]; r.Chain == c.name && r.Side == from && g.r.IntN(3) > 0 {
					r.Side = side
				}
			}
			from = side
		}
	}
	if g.Rules.Drops = g.r.IntN(3) == 0; g.Rules.Drops {
		g.addOneOf(accepting)
	}
}

// oneOf generates one of some rules.
func (g *generator) oneOf(list []feature) rule {
	for {
		if r, ok := g.one(list); ok {
			g.note(r)
			return r
		}
	}
}

// addOneOf adds one of some rules.
func (g *generator) addOneOf(list []feature) {
	g.Rules.Rules = append(g.Rules.Rules, g.oneOf(list))
}

// jump generates a jump that leaves a chain.
func (g *generator) jump(c chain, single bool) string {
	list := slices.Clone(jumps)
	if c.xt != "" && c.name != "pre_raw" {
		list = append(list, jumpsOfIP...)
	}
	if single {
		list = append(list, jumpsByPacket...)
	}
	if strings.HasSuffix(c.name, "_nat") { // what all connections need
		list = jumps[:2]
	}
	return g.oneOf(list).Text
}

// sideName is the name of the chain that a jump leads to.
func sideName(side int) string { return fmt.Sprintf("side%d", side) }

// lines returns the rules of a chain, or of one of its sides.
func (r ruleset) lines(chain string, side int) (lines []string) {
	led := make(map[int]bool)
	for _, rule := range r.Rules {
		if rule.Chain != chain {
			continue
		}
		if rule.Side == side {
			lines = append(lines, rule.Text)
			continue
		}
		for to := rule.Side; to != 0; to = r.Jumps[to-1].From {
			if r.Jumps[to-1].From == side && !led[to] {
				led[to] = true
				lines = append(lines, strings.ReplaceAll(r.Jumps[to-1].Text, "SIDE", sideName(to)))
			}
		}
	}
	return lines
}

// sides returns the sides of a chain, each after those that it leads to.
func (r ruleset) sides(chain string) (sides []int) {
	for _, rule := range r.Rules {
		for to := rule.Side; rule.Chain == chain && to != 0; to = r.Jumps[to-1].From {
			if !slices.Contains(sides, to) {
				sides = append(sides, to)
			}
		}
	}
	slices.Sort(sides)
	slices.Reverse(sides)
	return sides
}
