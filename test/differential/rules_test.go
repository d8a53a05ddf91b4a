package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket/layers"
)

// ruleset is loaded in place of all other rules.
type ruleset struct {
	Tool   tool
	Family string // family of nft's table: ip, ip6 or inet
	IPv6   bool   // the rules match IPv6
	Rules  []rule
	Jumps  []jump // to the sides of chains
	Drops  bool   // the policy of forward_filter
}

// tool is a program that loads rules.
type tool string

const (
	nft    tool = "nft"
	xtNft  tool = "iptables-nft"
	legacy tool = "iptables-legacy"
)

// rule is a line of a chain, or of a side of it.
type rule struct {
	Chain, Text string
	Side        int // as Jumps counts from 1; 0 for the chain itself
}

func (r ruleset) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rules of %s %s\n", r.Tool, r.Family)
	for _, r := range r.Rules {
		fmt.Fprintf(&b, "  %s%s: %s\n", r.Chain, map[bool]string{true: " " + sideName(r.Side)}[r.Side != 0], r.Text)
	}
	for i, j := range r.Jumps {
		fmt.Fprintf(&b, "  to %s, from %d: %s\n", sideName(i+1), j.From, j.Text)
	}
	if r.Drops {
		b.WriteString("  policy drop\n")
	}
	return b.String()
}

// chain is a chain of the case's rules.
type chain struct {
	name string
	nft  string // table and header
	xt   string // table and name in iptables; "" if it has none
}

var chains = []chain{
	{"pre_raw", "FAMILY diff type filter hook prerouting priority -300", "raw PREROUTING"},
	{"pre_mangle", "FAMILY diff type filter hook prerouting priority -150", "mangle PREROUTING"},
	{"pre_nat", "FAMILY diff type nat hook prerouting priority -100", "nat PREROUTING"},
	{"forward_mangle", "FAMILY diff type filter hook forward priority -150", "mangle FORWARD"},
	{"forward_filter", "FAMILY diff type filter hook forward priority 0", "filter FORWARD"},
	{"post_mangle", "FAMILY diff type filter hook postrouting priority -150", "mangle POSTROUTING"},
	{"post_nat", "FAMILY diff type nat hook postrouting priority 100", "nat POSTROUTING"},
	{"bridge_pre", "bridge diff type filter hook prerouting priority 0", ""},
	{"bridge_forward", "bridge diff type filter hook forward priority 0", ""},
	{"bridge_post", "bridge diff type filter hook postrouting priority 0", ""},
	{"bridge_in", "bridge diff type filter hook input priority 0", ""},
	{"port_ingress", "netdev diff type filter hook ingress device veth1 priority 0", ""},
	{"ingress", "netdev diff type filter hook ingress device eth0 priority 0", ""},
	{"egress", "netdev diff type filter hook egress device eth0 priority 0", ""},
	{"inet_ingress", "inet atdev type filter hook ingress device eth0 priority 1", ""},
	{"port_egress", "netdev diff type filter hook egress device veth1 priority 0", ""},
	{bridgeIngress, "netdev diff type filter hook ingress device docker0 priority 0", ""},
	{bridgeEgress, "netdev diff type filter hook egress device docker0 priority 0", ""},
	{"forward_late", "FAMILY late type filter hook forward priority 10", ""},
}

// xtChains are those that iptables has, too.
var xtChains = slices.DeleteFunc(slices.Clone(chains), func(c chain) bool { return c.xt == "" })

// Chains at the bridge, which not all worlds have.
const bridgeIngress, bridgeEgress = "bridge_ingress", "bridge_egress"

// texts returns the rules of a chain.
func (r ruleset) texts(chain string) (texts []string) {
	for _, r := range r.Rules {
		if r.Chain == chain {
			texts = append(texts, r.Text)
		}
	}
	return texts
}

// script loads the rules and removes all others, those of other tools
// included.
func (r ruleset) script() string {
	switch r.Tool {
	case nft:
		return r.nftScript()
	default:
		return "nft flush ruleset\n" + r.xtScript()
	}
}

// restore returns the iptables-restore command of the tool.
func (r ruleset) restore() string {
	if r.IPv6 {
		return strings.Replace(string(r.Tool), "ip", "ip6", 1) + "-restore"
	}
	return string(r.Tool) + "-restore"
}

// empty empties iptables' tables.
func (r ruleset) empty() string { return r.xtScript() }

// sets returns the sets in the ruleset's family.
func (r ruleset) sets() string {
	if r.IPv6 {
		return overIPv6.Replace(sets)
	}
	return sets
}

// overIPv6 translates rules from IPv4 to IPv6. forIPv6 detects the expressions that
// IPv6 lacks, which stay untranslated.
var overIPv6 = strings.NewReplacer(
	"ipv4_addr", "ipv6_addr",
	"ct original saddr", "ct original ip6 saddr",
	"ip saddr", "ip6 saddr", "ip daddr", "ip6 daddr", "ip dscp", "ip6 dscp", "ip ecn", "ip6 ecn",
	"ip ttl", "ip6 hoplimit", "ip length", "ip6 length", "ip protocol", "ip6 nexthdr", "ip id", "ip6 flowlabel",
	"ip frag-off & 0x1fff != 0", "exthdr frag exists",
	"ip to ", "ip6 to ", "icmp type", "icmpv6 type",
	"-m ttl --ttl-", "-m hl --hl-", "-j TTL --ttl-", "-j HL --hl-",
	"rt ip nexthop", "rt ip6 nexthop", "diffset", "diffset6",
	"icmp-admin-prohibited", "icmp6-adm-prohibited", "-f -j DROP", "-m frag --fragfirst -j DROP",
	"172.17.0.0/16", "fd00:17::/64", "172.17.0.2", "fd00:17::2", "172.17.0.3", "fd00:17::3", "172.17.0.1", "fd00:17::1",
	"10.77.0.0/24", "fd00:77::/64", "10.77.0.", "fd00:77::",
	"198.18.0.0/18", "2001:db8:18::/114", "198.18.0.0-198.18.63.255", "2001:db8:18::-2001:db8:18::3fff",
)

// forIPv6 translates a rule to IPv6, if there is such a rule.
func forIPv6(text string) (string, bool) {
	for _, only := range []string{"--ecn-tcp-remove", "0>>22", "u32", "@nh", "bytecode", "realm", "TEE"} {
		if strings.Contains(text, only) {
			return "", false
		}
	}
	return overIPv6.Replace(text), true
}

// sets are the sets that nft's rules use.
const sets = ` set some { type ipv4_addr; flags interval; elements = { 172.17.0.3, 198.18.0.0/18 }; }
 set noted { type ipv4_addr; size 4096; flags dynamic; }
` + objects

func (r ruleset) nftScript() string {
	var b strings.Builder
	b.WriteString("nft -f - <<'END'\nflush ruleset\n")
	for _, c := range chains {
		if r.texts(c.name) == nil {
			continue
		}
		words := strings.SplitN(strings.Replace(c.nft, "FAMILY", r.Family, 1), " ", 3)
		fmt.Fprintf(&b, "table %s %s {\n%s", words[0], words[1], r.sets())
		for _, side := range r.sides(c.name) {
			fmt.Fprintf(&b, " chain %s {\n  %s\n }\n", sideName(side), strings.Join(r.lines(c.name, side), "\n  "))
		}
		if r.Drops && c.name == "forward_filter" {
			words[2] += "; policy drop"
		}
		fmt.Fprintf(&b, " chain %s {\n  %s\n  %s\n }\n}\n", c.name, words[2], strings.Join(r.lines(c.name, 0), "\n  "))
	}
	b.WriteString("END\n")
	return b.String()
}

func (r ruleset) xtScript() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s <<'END'\n", r.restore())
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		fmt.Fprintf(&b, "*%s\n", table)
		if r.Drops && table == "filter" {
			b.WriteString(":FORWARD DROP [0:0]\n")
		}
		for _, c := range chains {
			name, ok := strings.CutPrefix(c.xt, table+" ")
			if !ok {
				continue
			}
			for _, side := range append(r.sides(c.name), 0) {
				to := name
				if side != 0 {
					to = sideName(side)
					fmt.Fprintf(&b, ":%s - [0:0]\n", to)
				}
				for _, text := range r.lines(c.name, side) {
					fmt.Fprintf(&b, "-A %s %s\n", to, strings.ReplaceAll(text, "\n-A "+name+" ", "\n-A "+to+" "))
				}
			}
		}
		b.WriteString("COMMIT\n")
	}
	b.WriteString("END\n")
	return r.ipset(b.String()) + b.String()
}

// feature is a rule that a case may have. THERE is replaced by a match of a
// connection's original direction, BACK by a match of its reply direction.
type feature struct {
	chain   string
	nft, xt string // "" if the tool has no such rule
}

// features are verdicts, marks and rewriting, by connection or by packet.
var features = []feature{
	{"forward_filter", "THERE drop", "THERE -j DROP"},
	{"forward_filter", "BACK drop", "BACK -j DROP"},
	{"forward_filter", "THERE reject", "THERE -j REJECT"},
	{"forward_filter", "BACK reject with icmp type admin-prohibited", "BACK -j REJECT --reject-with icmp-admin-prohibited"},
	{"forward_filter", "meta l4proto tcp THERE reject with tcp reset", ""},
	{"forward_filter", "ct state invalid drop", "-m conntrack --ctstate INVALID -j DROP"},
	{"forward_filter", "ct state invalid drop", "-m state --state INVALID -j DROP"},
	{"forward_filter", "ct state established,related accept", "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"},
	{"forward_filter", "THERE ct state new drop", "THERE -m conntrack --ctstate NEW -j DROP"},
	{"forward_filter", "THERE ct direction reply drop", "THERE -m conntrack --ctdir REPLY -j DROP"},
	{"forward_filter", "ct status dnat accept", "-m conntrack --ctstate DNAT -j ACCEPT"},
	{"forward_filter", "iifname eth0 ct state new ct status != dnat drop", ""},
	{"forward_filter", "THERE limit rate 1/hour burst 15 packets accept", "THERE -m limit --limit 1/hour --limit-burst 15 -j ACCEPT"},
	{"forward_filter", "THERE limit rate over 1/hour burst 12 packets drop", "THERE -m hashlimit --hashlimit-above 1/hour --hashlimit-burst 12 --hashlimit-name diff --hashlimit-mode srcip -j DROP"},
	{"forward_filter", "ct state new limit rate 1/hour burst 40 packets accept", "-m conntrack --ctstate NEW -m limit --limit 1/hour --limit-burst 40 -j ACCEPT"},
	{"forward_filter", "THERE quota over 2000 bytes drop", "THERE -m quota --quota 2000 -j ACCEPT"},
	{"forward_filter", "THERE ip length > 100 drop", "THERE -m length --length 100:65535 -j DROP"},
	{"forward_filter", "ip ttl < 10 drop", "-m ttl --ttl-lt 10 -j DROP"},
	{"forward_filter", "THERE numgen inc mod 3 0 drop", "THERE -m statistic --mode nth --every 3 --packet 0 -j DROP"},
	{"forward_filter", "THERE numgen random mod 1 0 accept", "THERE -m statistic --mode random --probability 1.0 -j DROP"},
	{"forward_filter", "ct original packets > 12 THERE drop", "THERE -m connbytes --connbytes 12 --connbytes-dir original --connbytes-mode packets -j DROP"},
	{"forward_filter", "THERE tcp flags & (fin|syn|rst|psh|ack|urg) == psh|ack drop", "-p tcp --tcp-flags ALL PSH,ACK -j DROP"},
	{"forward_filter", "tcp option timestamp exists drop", "-p tcp --tcp-option 8 -j DROP"},
	{"forward_filter", "THERE @th,64,8 > 0x80 drop", "-p udp -m u32 --u32 0>>22&0x3C@8>>24=0x80:0xff -j DROP"},
	{"forward_filter", "", "THERE -m string --algo bm --string a -j DROP"},
	{"forward_filter", "ip ecn ce drop", "-m ecn --ecn-ip-ect 3 -j DROP"},
	{"forward_filter", "ip dscp 10 drop", "-m dscp --dscp 10 -j DROP"},
	{"forward_filter", "ip id < 60 THERE drop", "THERE -m u32 --u32 2&0xFFFF=0:60 -j DROP"},
	{"forward_filter", "ip frag-off & 0x1fff != 0 drop", "-f -j DROP"},
	{"forward_filter", "ip daddr @some drop", "-m iprange --dst-range 198.18.0.0-198.18.63.255 -j DROP"},
	{"forward_filter", "ip saddr @some accept", "-s 172.17.0.3 -j ACCEPT"},
	{"forward_filter", "THERE update @noted { ip saddr } accept", "THERE -m recent --name diff --set -j ACCEPT"},
	{"forward_filter", "fib saddr type local drop", "-m addrtype --src-type LOCAL -j DROP"},
	{"forward_filter", "meta mark 7 drop", "-m mark --mark 7 -j DROP"},
	{"forward_filter", "THERE counter accept", "THERE -j ACCEPT"},
	{"forward_filter", "THERE meta pkttype != unicast drop", "THERE -m pkttype ! --pkt-type unicast -j DROP"},
	// Above 0: the kernel counts a connection that has just ended on another processor for
	// up to two jiffies more, so that a larger limit is a matter of time.
	{"forward_filter", "THERE add @noted { ip saddr ct count over 0 } drop", "THERE -m connlimit --connlimit-above 0 -j DROP"},
	{"forward_filter", "THERE update @noted { ip daddr limit rate over 1/hour burst 14 packets } drop", "THERE -m hashlimit --hashlimit-upto 1/hour --hashlimit-burst 14 --hashlimit-name upto --hashlimit-mode dstip -j ACCEPT"},
	{"forward_filter", "ip saddr @noted drop", "-m recent --name diff --rcheck --hitcount 9 -j DROP"},
	{"forward_filter", "THERE ct original saddr 172.17.0.3 drop", "-m conntrack --ctorigsrc 172.17.0.3 -j DROP"},
	{"forward_filter", "ct reply packets > 10 drop", "-m connbytes --connbytes 900: --connbytes-dir reply --connbytes-mode bytes -j DROP"},
	{"forward_filter", "ip saddr . meta l4proto vmap { 172.17.0.2 . udp : drop, 172.17.0.3 . tcp : accept }", "-s 172.17.0.2 -p udp -j DROP"},
	{"forward_filter", "meta l4proto . th dport vmap { udp . 1-1000 : drop, tcp . 1-1000 : accept }", "-p udp -m multiport --dports 1:1000,5000:6000 -j DROP"},
	{"forward_filter", "ip dscp vmap { 10 : drop, 46 : accept }", "-m tos --tos 0x28/0xfc -j DROP"},
	{"forward_filter", "meta length > 250 drop", "-m u32 --u32 0&0xFFFF=250:65535 -j DROP"},
	{"forward_filter", "THERE meta random > 0 accept", "THERE -m time --timestart 00:00 --timestop 23:59:59 -j ACCEPT"},
	{"forward_filter", "tcp option sack-perm missing meta l4proto udp drop", "-p tcp --tcp-option 4 -j DROP"},
	{"forward_filter", "tcp flags & urg == urg drop", "-p tcp --tcp-flags URG URG -j DROP"},
	{"forward_filter", "tcp window < 100 drop", ""},
	{"forward_filter", "jhash ip saddr . th sport mod 2 seed 0xbeef 0 drop", "-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 0x12 -j DROP"},
	{"forward_filter", "jhash ip daddr . ip id mod 2 seed 0xbeef 0 drop", "THERE -m statistic --mode nth --every 4 --packet 1 -j DROP"},
	{"forward_filter", "ct mark 5 drop", "-m connmark --mark 5/0xf -j DROP"},
	{"forward_filter", "meta mark & 0x4 == 0x4 reject", "-m mark --mark 4/4 -j REJECT"},
	{"forward_filter", "THERE ct state established meta mark set 7", "THERE -m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL -j MARK --set-mark 7"},
	{"forward_mangle", "meta mark set jhash ip saddr . ip daddr mod 8 seed 0xbeef", "-j HMARK --hmark-tuple src,dst --hmark-mod 8 --hmark-offset 0 --hmark-rnd 0xcafe"},
	{"forward_mangle", "ip dscp 10 ip dscp set 46", "-j TOS --set-tos 0x28/0xfc"},
	{"forward_mangle", "THERE ct mark set ct mark or 0x5", "THERE -j CONNMARK --or-mark 5"},
	{"post_mangle", "meta mark 7 ip dscp set 20", "-m mark --mark 7 -j DSCP --set-dscp 20"},
	{"post_mangle", "ip dscp 10 meta priority set 1:7", "-m dscp --dscp 10 -j CLASSIFY --set-class 1:7"},
	{"pre_mangle", "ct direction reply meta mark set 6", "-m conntrack --ctdir REPLY -j MARK --set-mark 6"},
	{"pre_mangle", "ether saddr != 02:42:ac:11:00:02 meta mark set 6", "-m mac --mac-source 02:42:ac:11:00:02 -j MARK --set-mark 6"},
	{"bridge_pre", "ip dscp 10 drop", ""},
	{"bridge_pre", "ether type arp limit rate 5/second accept", ""},
	{"bridge_post", "ip protocol udp meta length > 200 drop", ""},
	{"bridge_post", "ip saddr 10.77.0.0/24 meta mark set 9", ""},
	{"ingress", "ip dscp 10 drop", ""},
	{"ingress", "ip protocol udp limit rate over 1/hour burst 30 packets drop", ""},
	{"egress", "ip dscp 10 drop", ""},
	{"pre_raw", "THERE notrack", "THERE -j CT --notrack"},
	{"pre_raw", "BACK notrack", "BACK -j CT --notrack"},
	{"pre_raw", "iifname docker0 ip saddr != 172.17.0.0/16 drop", "-i docker0 ! -s 172.17.0.0/16 -j DROP"},
	{"pre_raw", "fib saddr . iif oif missing drop", ""},
	{"pre_mangle", "THERE meta mark set 5", "THERE -j MARK --set-mark 5"},
	{"pre_mangle", "iifname docker0 meta mark set 5", "-i docker0 -j MARK --set-mark 5"},
	{"pre_mangle", "THERE ip dscp 10 meta mark set 7", "THERE -m dscp --dscp 10 -j MARK --set-mark 7"},
	{"pre_mangle", "meta mark set ct mark", "-j CONNMARK --restore-mark"},
	{"pre_mangle", "ip dscp set 22", "-j DSCP --set-dscp 22"},
	{"forward_mangle", "THERE ct mark set 5", "THERE -j CONNMARK --set-mark 5"},
	{"forward_mangle", "THERE ip dscp set 12", "THERE -j DSCP --set-dscp 12"},
	{"forward_mangle", "BACK ip dscp set 46", "BACK -j DSCP --set-dscp 46"},
	{"forward_mangle", "THERE ip ecn set ce", "-p tcp -j ECN --ecn-tcp-remove"},
	{"forward_mangle", "THERE ip ttl set 33", "THERE -j TTL --ttl-set 33"},
	{"forward_mangle", "", "THERE -j TTL --ttl-inc 1"},
	{"forward_mangle", "tcp flags syn tcp option maxseg size set 1200", "-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1200"},
	{"forward_mangle", "THERE ip length > 120 ip dscp set 4", "THERE -m length --length 120:65535 -j DSCP --set-dscp 4"},
	{"post_mangle", "meta priority set 1:2", "-j CLASSIFY --set-class 1:2"},
	{"post_mangle", "ct mark 5 ip dscp set 8", "-m connmark --mark 5 -j DSCP --set-dscp 8"},
	{"post_mangle", "oifname docker0 ip dscp set 30", "-o docker0 -j DSCP --set-dscp 30"},
	{"post_mangle", "BACK drop", "BACK -j DROP"},
	{"bridge_pre", "ip saddr 172.17.0.3 drop", ""},
	{"bridge_forward", "ip saddr 172.17.0.3 drop", ""},
	{"bridge_forward", "ip protocol udp ip length > 150 drop", ""},
	{"bridge_pre", "ip protocol udp ip length > 150 drop", ""},
	{"bridge_pre", "ip protocol tcp meta mark set 5", ""},
	{"bridge_pre", "ip saddr 172.17.0.2 ether saddr != 02:42:ac:11:00:02 drop", ""},
	{"bridge_post", "ip daddr 172.17.0.2 ip ttl < 40 drop", ""},
	{"bridge_post", "oifname veth2 ip daddr != 172.17.0.3 ip protocol udp drop", ""},
	{"ingress", "ip length > 300 ip protocol udp drop", ""},
	{"ingress", "ip ttl < 5 drop", ""},
	{"egress", "ip length > 300 ip protocol udp drop", ""},
	{"egress", "ip protocol tcp ip dscp set 18", ""},
}

// rules generates a ruleset for the connections.
func (g *generator) rules() {
	g.Rules.Tool = []tool{nft, nft, xtNft, legacy}[g.r.IntN(4)]
	g.Rules.Family, g.Rules.IPv6 = []string{"ip", "ip", "inet"}[g.r.IntN(3)], g.ipv6
	if g.ipv6 && g.Rules.Family == "ip" {
		g.Rules.Family = "ip6"
	}
	for _, c := range g.Conns {
		g.translate(c)
	}
	switch g.r.IntN(8) {
	case 0:
	case 1:
		g.add("post_nat", "oifname eth0 snat ip to 10.77.0.11", "-o eth0 -j SNAT --to-source 10.77.0.11")
	default:
		g.add("post_nat", "oifname eth0 masquerade", "-o eth0 -j MASQUERADE")
	}
	if g.untracked {
		g.add("pre_raw", "notrack", "-j CT --notrack")
	}
	if g.about.features != nil || g.r.IntN(3) > 0 {
		for range 1 + g.r.IntN(3) {
			r := g.feature()
			g.note(r)
			g.Rules.Rules = append(g.Rules.Rules, r)
		}
	}
}

// translate adds the NAT rules that a connection needs, and sometimes others.
func (g *generator) translate(c conn) {
	proto, port := strings.ToLower(c.Proto.String()), c.Dst.Port()
	match := fmt.Sprintf("%s dport %d", proto, port)
	xt := fmt.Sprintf("-p %s --dport %d", proto, port)
	switch {
	case c.Kind == "published":
		to := netip.AddrPortFrom(g.containerAddr(c.To), uint16(1080+g.r.IntN(8))).String()
		g.add("pre_nat", match+" dnat ip to "+to, xt+" -j DNAT --to-destination "+to)
	case c.Kind == "hairpin":
		to := netip.AddrPortFrom(g.containerAddr(c.To), uint16(1080+g.r.IntN(8))).String()
		g.add("pre_nat", match+" dnat ip to "+to, xt+" -j DNAT --to-destination "+to)
		if g.r.IntN(2) == 0 {
			// Not masquerade: that drops the first packet that is routed elsewhere.
			g.add("post_nat", "ip saddr 172.17.0.0/16 oifname docker0 snat ip to 172.17.0.1", "-s 172.17.0.0/16 -o docker0 -j SNAT --to-source 172.17.0.1")
		}
	case c.Kind == "out" && g.r.IntN(12) == 0:
		remote := netip.MustParseAddr("198.18.200.200")
		if g.ipv6 {
			remote = netip.MustParseAddr("2001:db8:18::200:200")
		}
		to := netip.AddrPortFrom(remote, uint16(5900+g.r.IntN(90))).String()
		g.add("pre_nat", match+" dnat ip to "+to, xt+" -j DNAT --to-destination "+to)
	case c.Kind == "out" && g.r.IntN(30) == 0:
		g.add("pre_nat", match+" redirect to :7777", xt+" -j REDIRECT --to-ports 7777")
	}
}

// add adds a rule in the syntax of the ruleset's tool.
func (g *generator) add(chain, nftText, xtText string) {
	text := xtText
	if g.Rules.Tool == nft {
		text = nftText
	}
	if g.ipv6 {
		text, _ = forIPv6(text)
	}
	g.Rules.Rules = append(g.Rules.Rules, rule{Chain: chain, Text: text})
}

// feature generates a rule about one of the connections.
func (g *generator) feature() rule {
	for {
		list := slices.Concat(features, stateful, ofPorts)
		if g.about.features != nil && g.r.IntN(2) == 0 {
			list = g.about.features
		}
		if r, ok := g.one(list); ok {
			return r
		}
	}
}

// one generates one of some rules about one of the connections, if there is such a rule.
func (g *generator) one(list []feature) (r rule, ok bool) {
	f, c := list[g.r.IntN(len(list))], g.Conns[g.r.IntN(len(g.Conns))]
	if g.routed && (f.chain == bridgeIngress || f.chain == bridgeEgress) {
		return rule{}, false
	}
	text, ok := f.text(c, g.Rules.Tool)
	return rule{Chain: f.chain, Text: text}, ok
}

// text returns the rule for a tool; ok is false if there is none for such a
// connection.
func (f feature) text(c conn, t tool) (text string, ok bool) {
	text = f.xt
	if t == nft {
		text = f.nft
	}
	about := strings.Contains(text, "THERE") || strings.Contains(text, "BACK")
	if text == "" || about && strings.Contains(text, "tcp") && c.Proto != layers.IPProtocolTCP {
		return "", false
	}
	if c.Src.Addr().Is6() {
		if text, ok = forIPv6(text); !ok {
			return "", false
		}
	}
	return matchConn(text, c, t), true
}

// note records the properties of a rule.
func (g *generator) note(r rule) {
	g.counting = g.counting || r.counts()
	g.tracking = g.tracking || r.tracks()
}

// tracks reports whether a rule matches conntrack's state.
func (r rule) tracks() bool {
	return slices.ContainsFunc([]string{"ct ", "conntrack", "-m state", "connmark", "CONNMARK"},
		func(word string) bool { return strings.Contains(r.Text, word) })
}

// counts reports whether a rule counts packets.
func (r rule) counts() bool {
	return slices.ContainsFunc([]string{"limit", "quota", "numgen inc", "statistic --mode nth", "packets", "recent"},
		func(word string) bool { return strings.Contains(r.Text, word) })
}

// matchConn replaces THERE and BACK in a rule. Address and port of the connection's
// outer end are the same at all hooks, unless NAT changes them.
func matchConn(text string, c conn, t tool) string {
	proto, remote, toRemote := strings.ToLower(c.Proto.String()), c.Dst, true
	if c.From == edge {
		remote, toRemote = c.Src, false
	}
	to := [2]string{"dport", "daddr"}
	from := [2]string{"sport", "saddr"}
	conn, back := to, from
	if !toRemote {
		conn, back = from, to
	}
	write := func(words [2]string) string {
		if t == nft {
			family := "ip"
			if remote.Addr().Is6() {
				family = "ip6"
			}
			return fmt.Sprintf("%s %s %v %s %s %d", family, words[1], remote.Addr(), proto, words[0], remote.Port())
		}
		flag := map[string]string{"daddr": "-d", "saddr": "-s"}[words[1]]
		return fmt.Sprintf("%s %v -p %s --%s %d", flag, remote.Addr(), proto, words[0], remote.Port())
	}
	return strings.NewReplacer("THERE", write(conn), "BACK", write(back)).Replace(text)
}
