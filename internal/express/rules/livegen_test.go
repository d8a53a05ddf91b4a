package rules

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ruleGenerator generates changes of rules.
type ruleGenerator struct {
	r    *rand.Rand
	live *Live
}

func (g *ruleGenerator) one(of ...string) string { return of[g.r.IntN(len(of))] }

func (g *ruleGenerator) addr() string {
	return fmt.Sprintf("10.0.%d.%d", g.r.IntN(3), 1+g.r.IntN(4))
}

func (g *ruleGenerator) port() string { return fmt.Sprint(1 + g.r.IntN(5)) }

// conn is a random connection.
func (g *ruleGenerator) conn() Conn {
	c := outbound([]uint8{tcp, udp}[g.r.IntN(2)], "443")
	if g.r.IntN(3) == 0 {
		c = published(tcp, "80")
	}
	at := func() netip.AddrPort { return netip.MustParseAddrPort(g.addr() + ":" + g.port()) }
	c.Orig.Src, c.Orig.Dst = at(), at()
	c.Reply.Src, c.Reply.Dst = c.Orig.Dst, c.Orig.Src
	if g.r.IntN(2) == 0 {
		c.Reply.Dst = at()
	}
	switch g.r.IntN(8) {
	case 0:
		c = unreplied(c)
	case 1:
		c.Untracked = true
		c.Status = 0
	case 2:
		c.Peer = Device{Name: "veth1", Index: 8}
	}
	return c
}

// rule is the text of a random rule, without jumps.
func (g *ruleGenerator) rule(inTable string) string {
	conditions := []string{
		"ip saddr " + g.addr(), "ip daddr " + g.addr(), "tcp dport " + g.port(), "udp sport " + g.port(),
		"ct state new", "ct state established,related", "ct state vmap { established : accept, invalid : drop }",
		"tcp dport { 1, 2, " + g.port() + " }", "ip saddr { 10.0.0.1-10.0.0.3, 10.0.1.0/24 }", "ip saddr " + g.addr() + "/31",
		`iifname "veth0"`, `oifname "eth*"`, "meta mark 1", "meta l4proto udp", "ct direction reply", "ct status dnat", "ip protocol tcp",
		"ip saddr . tcp dport { 10.0.0.1 . 1, 10.0.0.2 . 2-3 }", "ip daddr != " + g.addr(), "tcp dport vmap { 1 : accept, 2 : drop }",
		"th dport != { 3, 4 }",
	}
	if inTable == "inet t" {
		conditions = append(conditions, "ip saddr @addresses", "ip daddr @ranges", "ip saddr . tcp dport @pairs", "ip daddr @timed",
			"ip saddr vmap @verdicts", "ip saddr @seen", "ip saddr @addresses", "ip saddr vmap @verdicts")
	}
	if inTable == "netdev d" || inTable == "bridge b" {
		conditions = conditions[:4]
	}
	statements := []string{
		"accept", "drop", "return", "counter", "accept", "drop", "meta mark set 7", "counter accept", "ip dscp set cs1",
	}
	if g.r.IntN(12) == 0 {
		statements = []string{"limit rate 5/second accept", "log", "quota 100 mbytes drop", "meta length > 1000 drop", "counter name exact", "ip ttl set 3"}
		if inTable != "inet t" {
			statements = statements[:4]
		}
	}
	if inTable == "inet t" && g.r.IntN(12) == 0 {
		return g.one("", "udp dport "+g.port()+" ") + "notrack"
	}
	if inTable == "inet t" && g.r.IntN(6) == 0 {
		statements = []string{"meta mark set ip saddr map @marks accept", "add @seen { ip saddr }", "jump a", "jump b", "goto b", "counter name plain accept"}
	}
	if g.r.IntN(6) == 0 {
		statements = []string{g.one("jump", "goto") + " { ip saddr " + g.addr() + " " + g.one("drop", "accept", "return", "meta mark set 9", "limit rate 5/second") + " ; }"}
		if inTable == "inet t" && g.r.IntN(2) == 0 {
			statements = []string{"quota name ip saddr map @quotas", "counter name ip saddr map @counters", "jump { ip saddr vmap @verdicts ; }", "jump { jump { ip daddr " + g.addr() + " drop ; } ; ip saddr @addresses drop ; }", "ct mark set 5", "ct zone set 3", "dup to " + g.addr()}
		}
	}
	text := ""
	for range g.r.IntN(3) {
		text += g.one(conditions...) + " "
	}
	return text + g.one(statements...)
}

// chain is a random chain that is followed: its table, name and handles.
func (g *ruleGenerator) chain() (table, name string, handles []uint64) {
	var all []*chain
	for _, t := range g.live.nft.tables {
		if t.kept {
			for _, c := range t.chains {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return "inet t", "f", nil
	}
	slices.SortFunc(all, func(a, b *chain) int { return strings.Compare(a.String(), b.String()) })
	c := all[g.r.IntN(len(all))]
	for _, r := range c.all {
		handles = append(handles, r.handle)
	}
	return c.table, c.name, handles
}

const baseTables = `
table inet t {
 counter exact {}
 counter plain {}
 set addresses { type ipv4_addr; elements = { 10.0.0.1, 10.0.1.2 }; }
 set ranges { type ipv4_addr; flags interval; elements = { 10.0.0.0/30, 10.0.2.1-10.0.2.3 }; }
 set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/24 . 1-3 }; }
 set timed { type ipv4_addr; flags timeout; elements = { 10.0.0.2 timeout 1h }; }
 set seen { type ipv4_addr; flags dynamic; size 100; }
 quota qq { over 5 mbytes }
 map quotas { type ipv4_addr : quota; }
 map counters { type ipv4_addr : counter; }
 map marks { type ipv4_addr : mark; elements = { 10.0.0.1 : 1, 10.0.0.2 : 2 }; }
 chain a { }
 chain b { }
 map verdicts { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump a, 10.0.0.2 : accept }; }
 chain f { type filter hook forward priority 0; }
 chain p { type filter hook prerouting priority -300; }
}
`

// command is a random command of nft.
func (g *ruleGenerator) command() string {
	table, name, handles := g.chain()
	handle := uint64(1)
	if len(handles) > 0 {
		handle = handles[g.r.IntN(len(handles))]
	}
	rule := g.rule(table)
	switch g.r.IntN(26) {
	case 0, 1, 2, 3:
		return fmt.Sprintf("add rule %s %s %s", table, name, rule)
	case 4, 5, 6:
		return fmt.Sprintf("insert rule %s %s %s", table, name, rule)
	case 7, 8:
		return fmt.Sprintf("insert rule %s %s handle %d %s", table, name, handle, rule)
	case 9:
		return fmt.Sprintf("add rule %s %s handle %d %s", table, name, handle, rule)
	case 10, 11:
		return fmt.Sprintf("replace rule %s %s handle %d %s", table, name, handle, rule)
	case 12, 13, 14:
		return fmt.Sprintf("delete rule %s %s handle %d", table, name, handle)
	case 15:
		return g.one("add", "add", "delete") + " element inet t " + g.one("addresses { * }", "ranges { * }", "timed { * }", "addresses { "+g.addr()+" }", "timed { "+g.addr()+" }", "ranges { "+g.addr()+" }",
			"ranges { "+g.addr()+"-10.0.2.9 }", "pairs { "+g.addr()+" . "+g.port()+" }", "pairs { 10.0.1.0/24 . "+g.port()+"-9 }")
	case 16:
		return g.one("add element inet t marks { * : 3 }", "delete element inet t marks { * }", "add element inet t verdicts { * : "+g.one("jump a", "goto b", "drop")+" }", "delete element inet t verdicts { * }", "add element inet t quotas { "+g.addr()+" : \"qq\" }", "add element inet t counters { "+g.addr()+" : \"exact\" }", "delete element inet t counters { "+g.addr()+" }", "add element inet t marks { "+g.addr()+" : "+g.port()+" }", "delete element inet t marks { "+g.addr()+" }",
			"add element inet t verdicts { "+g.addr()+" : "+g.one("jump a", "jump b", "goto a", "drop", "accept")+" }", "delete element inet t verdicts { "+g.addr()+" }")
	case 17:
		return "flush set inet t " + g.one("addresses", "ranges", "pairs", "timed", "seen")
	case 18:
		return g.one("flush map inet t marks", "flush map inet t verdicts", "add element inet t seen { "+g.addr()+" }")
	case 19:
		return fmt.Sprintf("flush chain %s %s", table, name)
	case 20:
		return g.one("add chain inet t x", "delete chain inet t x", "add rule inet t f jump x", "add rule inet t x "+g.rule("inet t"),
			"rename chain inet t x y", "delete chain inet t y", "add rule inet t a jump b", "add rule inet t b jump x")
	case 21:
		return g.one("add chain inet t q { type filter hook postrouting priority 5; policy "+g.one("accept", "drop")+"; }", "delete chain inet t q",
			"add chain inet t f { type filter hook forward priority 0; policy "+g.one("accept", "accept", "drop")+"; }",
			"add chain inet t n { type nat hook postrouting priority 100; }", "add rule inet t n ip saddr "+g.addr()+" masquerade", "add rule inet t q jump a")
	case 22:
		return g.one("add table bridge b; add chain bridge b f { type filter hook forward priority 0; }", "add rule bridge b f "+g.rule("bridge b"), "delete table bridge b",
			"add table netdev d; add chain netdev d i { type filter hook ingress device lo priority 0; }", "add rule netdev d i "+g.rule("netdev d"), "delete table netdev d",
			"add table ip nat; add chain ip nat p { type nat hook prerouting priority -100; }; add rule ip nat p ip daddr "+g.addr()+" dnat to "+g.addr(), "delete table ip nat")
	case 23:
		return g.one("add set inet t more { type ipv4_addr; elements = { "+g.addr()+" }; }", "delete set inet t more", "add rule inet t f ip saddr @more drop",
			"add element inet t more { "+g.addr()+" }", "add quota inet t q { over 5 mbytes }", "add rule inet t f quota name q drop", "delete quota inet t q")
	case 24:
		if g.r.IntN(4) > 0 {
			return "flush table " + table
		}
		return g.one("add table inet t { flags dormant; }", "add table inet t", "delete table "+table)
	default:
		return "list ruleset"
	}
}

// change is a script that changes the rules, in one transaction or in several.
func (g *ruleGenerator) change() string {
	if g.live.nft == nil || g.live.nft.tables[tableKey{unix.NFPROTO_INET, "t"}] == nil {
		return nftScript(baseTables)
	}
	switch g.r.IntN(12) {
	case 0: // one after the other
		var b strings.Builder
		for range 2 + g.r.IntN(4) {
			fmt.Fprintf(&b, "{ %s; } || true\n", strings.TrimSpace(nftScript(g.command())))
		}
		return b.String()
	case 1, 2, 6, 7: // at once
		var commands []string
		for range 2 + g.r.IntN(5) {
			commands = append(commands, g.command())
		}
		return nftScript(strings.Join(commands, "\n"))
	case 3:
		return g.one("iptables-nft-save > saved; iptables-nft-restore < saved", "nft list ruleset > saved; { echo flush ruleset; cat saved; } | nft -f -",
			"iptables-nft-save > saved; { grep -v COMMIT saved; echo '-A FORWARD -s "+g.addr()+" -j ACCEPT'; echo COMMIT; } | iptables-nft-restore",
			nftScript("flush ruleset\n"+baseTables), nftScript("delete table inet t\n"+baseTables),
			"nft list table inet t > saved; { echo delete table inet t; cat saved; } | nft -f -")
	case 4, 5:
		rule := g.one("-s "+g.addr()+" -j ACCEPT", "-p tcp --dport "+g.port()+" -j DROP", "-m conntrack --ctstate NEW -s "+g.addr()+" -j ACCEPT", "-m conntrack --ctstate ESTABLISHED -j ACCEPT",
			"-s "+g.addr()+" -j MARK --set-mark 3", "-m limit --limit 5/s -s "+g.addr()+" -j ACCEPT", "-p udp -d "+g.addr()+" -j C", "-j C")
		chain := g.one("FORWARD", "FORWARD", "C")
		return "iptables-nft -N C 2>/dev/null || true\n" + g.one("iptables-nft -A "+chain+" "+rule, "iptables-nft -I "+chain+" "+rule, "iptables-nft -I "+chain+" 2 "+rule,
			"iptables-nft -D "+chain+" 1", "iptables-nft -R "+chain+" 1 "+rule, "iptables-nft -F "+chain, "iptables-nft -P FORWARD "+g.one("ACCEPT", "DROP"),
			"printf '*filter\n-D FORWARD 1\n-I FORWARD "+rule+"\nCOMMIT\n' | iptables-nft-restore --noflush",
			"printf '*filter\n:C - [0:0]\n-A C "+strings.Replace(rule, "-j C", "-j DROP", 1)+"\n-A C -j RETURN\nCOMMIT\n' | iptables-nft-restore --noflush")
	default:
		return nftScript(g.command())
	}
}

func nftScript(commands string) string {
	return "nft -f - <<'END'\n" + strings.ReplaceAll(commands, "; add ", "\nadd ") + "\nEND\n"
}

// shared is a number of leading bits of a connection's addresses and ports.
func (g *ruleGenerator) shared(c Conn) *Shared {
	var s Shared
	for i := range s {
		s[i].Addr, s[i].Port = uint8(g.r.IntN(c.Orig.Src.Addr().BitLen()+1)), uint8(g.r.IntN(17))
	}
	return &s
}
