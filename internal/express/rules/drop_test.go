package rules

import (
	"testing"
)

// dropCase says whether packets of a flow are certainly dropped, and only that.
type dropCase struct {
	name  string
	rules string
	flow  Flow
	why   string // "drop" if they are; what needs the packets; "" if they may pass
}

func (c dropCase) run(t *testing.T, tool string) {
	t.Helper()
	rule, ok := read(t, Options{Drops: true}, tool, c.rules).Discardable(c.flow)
	if ok != (c.why == "drop") || rule.Why != c.why {
		t.Errorf("discardable = %v by %q (%s), want %q", ok, rule.Text, rule.Why, c.why)
	}
	if rule.Why != "" && (rule.Table == "" || rule.Chain == "") {
		t.Errorf("a rule without a name: %+v", rule)
	}
}

// sent is a flow of a container to a port remote.
func sent(proto uint8, port string) Flow {
	c := outbound(proto, port)
	return Flow{Tuple: c.Orig, Port: c.Port, Inside: c.Inside, Outside: c.Outside, Forwarded: true}
}

// maybeHere is a flow that may be for this host.
func maybeHere(f Flow) Flow {
	f.Forwarded = false
	return f
}

// routed is a flow of a container to whose port a route leads.
func routed(f Flow) Flow {
	f.Routed, f.Inside = true, []Device{f.Port}
	return f
}

// TestXTDrops holds of both kinds of iptables which packets are dropped for
// certain.
func TestXTDrops(t *testing.T) {
	const (
		established = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
		web         = "-A FORWARD -i docker0 -p tcp --dport 80 -j ACCEPT\n"
		drop        = "-A FORWARD -j DROP\n"
		docker      = "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n" +
			"-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n" +
			"-A DOCKER -i docker0 -j RETURN\n-A DOCKER -p tcp --dport 443 -j DNAT --to-destination 172.17.0.3:443\nCOMMIT\n"
		redirect = "*nat\n-A PREROUTING -p tcp --dport 443 -j REDIRECT --to-ports 8443\nCOMMIT\n"
		input    = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n-A INPUT -j DROP\n-A FORWARD -j DROP\nCOMMIT\n"
	)
	flow := sent(tcp, "443")
	for _, c := range []dropCase{
		{"nothing", filterTable(""), flow, ""},
		{"all", filterTable(drop), flow, "drop"},
		{"all UDP", filterTable(drop), sent(udp, "53"), "drop"},
		{"policy", "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n", flow, "drop"},
		{"after established", filterTable(established + drop), flow, "drop"},
		{"another port accepted", filterTable(established + web + drop), flow, "drop"},
		{"this port accepted", filterTable(established + web + drop), sent(tcp, "80"), ""},
		{"this port dropped", filterTable("-A FORWARD -p tcp --dport 443 -j DROP"), flow, "drop"},
		{"this container dropped", filterTable("-A FORWARD -s " + container + " -j DROP"), flow, "drop"},
		{"another container dropped", filterTable("-A FORWARD -s 172.17.0.3 -j DROP"), flow, ""},
		{"invalid dropped", filterTable("-A FORWARD -m conntrack --ctstate INVALID -j DROP"), flow, ""},
		{"new dropped", filterTable("-A FORWARD -m conntrack --ctstate NEW -j DROP"), flow, ""},
		{"new and invalid dropped", filterTable("-A FORWARD -m conntrack --ctstate NEW,INVALID -j DROP"), flow, "drop"},
		{"not established dropped", filterTable("-A FORWARD -m conntrack ! --ctstate ESTABLISHED -j DROP"), flow, "drop"},
		{"invalid dropped, then all", filterTable("-A FORWARD -m conntrack --ctstate INVALID -j DROP\n" + drop), flow, "drop"},
		{"invalid logged", filterTable("-A FORWARD -m conntrack --ctstate INVALID -j LOG\n" + drop), flow, "LOG"},
		{"rejected", filterTable("-A FORWARD -j REJECT"), flow, "reject"},
		{"rejected with a RST", filterTable("-A FORWARD -p tcp -j REJECT --reject-with tcp-reset\n" + drop), flow, "reject"},
		{"UDP dropped, TCP rejected", filterTable("-A FORWARD -p tcp -j REJECT --reject-with tcp-reset\n" + drop), sent(udp, "443"), "drop"},
		{"perhaps rejected", filterTable("-A FORWARD -m mark --mark 1 -j REJECT\n" + drop), flow, "reject"},
		{"rejected behind the drop", filterTable(drop + "-A FORWARD -j REJECT"), flow, "drop"},
		{"logged", filterTable("-A FORWARD -j LOG\n" + drop), flow, "LOG"},
		{"logged at times", filterTable("-A FORWARD -m limit --limit 3/min -j LOG\n" + drop), flow, "limit"},
		{"logged behind the drop", filterTable(drop + "-A FORWARD -j LOG"), flow, "drop"},
		{"rate", filterTable("-A FORWARD -m limit --limit 3/min -j ACCEPT\n" + drop), flow, "limit"},
		{"rate of SYN", filterTable("-A FORWARD -p tcp --syn -m limit --limit 3/min -j ACCEPT\n" + drop), flow, "limit"},
		{"rate of SYN, of UDP", filterTable("-A FORWARD -p tcp --syn -m limit --limit 3/min -j ACCEPT\n" + drop), sent(udp, "443"), "drop"},
		{"rate of new ones", filterTable("-A FORWARD -m conntrack --ctstate NEW -m recent --name r --set\n" + drop), flow, "recent"},
		{"number of connections", filterTable("-A FORWARD -p tcp --syn -m connlimit --connlimit-above 5 -j DROP\n" + drop), flow, "connlimit"},
		{"chance", filterTable("-A FORWARD -m statistic --mode random --probability 0.5 -j DROP"), flow, ""},
		{"chance, then all", filterTable("-A FORWARD -m statistic --mode random --probability 0.5 -j DROP\n" + drop), flow, "drop"},
		{"by length", filterTable("-A FORWARD -m length --length 100: -j DROP"), flow, ""},
		{"by mark", filterTable("-A FORWARD -m mark --mark 1 -j DROP"), flow, ""},
		{"by DSCP", filterTable("-A FORWARD -m dscp --dscp 0 -j DROP"), flow, ""},
		{"by flags", filterTable("-A FORWARD -p tcp --syn -j DROP"), flow, ""},
		{"accepted by flags", filterTable("-A FORWARD -p tcp ! --syn -j ACCEPT\n" + drop), flow, ""},
		{"queue", filterTable("-A FORWARD -j NFQUEUE\n" + drop), flow, "NFQUEUE"},
		{"to another device", filterTable("-A FORWARD ! -o eth0 -j DROP"), flow, ""},
		{"to this device", filterTable("-A FORWARD -i docker0 -o eth0 -j DROP"), flow, "drop"},
		{"in a chain", filterTable("-A NO -p tcp --dport 443 -j DROP\n-A FORWARD -j NO\n"), flow, "drop"},
		{"returned from a chain", filterTable("-A NO -p tcp --dport 443 -j RETURN\n-A NO -j DROP\n-A FORWARD -j NO\n"), flow, ""},
		{"perhaps returned", filterTable("-A NO -m mark --mark 1 -j RETURN\n-A NO -j DROP\n-A FORWARD -j NO\n"), flow, ""},
		{"perhaps sent to a chain", filterTable("-A NO -j DROP\n-A FORWARD -m mark --mark 1 -j NO\n"), flow, ""},
		{"goto", filterTable("-A NO -p tcp --dport 80 -j DROP\n-A FORWARD -g NO\n" + drop), flow, ""},
		{"raw", "*raw\n-A PREROUTING -p tcp --dport 443 -j DROP\nCOMMIT\n", flow, "drop"},
		{"raw, elsewhere", "*raw\n-A PREROUTING -d 172.17.0.2 ! -i docker0 -j DROP\nCOMMIT\n", flow, ""},
		{"raw, perhaps for this host", "*raw\n-A PREROUTING -p tcp --dport 443 -j DROP\nCOMMIT\n", maybeHere(flow), "drop"},
		{"counted before", "*raw\n-A PREROUTING -m limit -j MARK --set-mark 1\nCOMMIT\n" + filterTable(drop), flow, "limit"},
		{"marked before", "*mangle\n-A PREROUTING -j MARK --set-mark 1\nCOMMIT\n" + filterTable(drop), flow, "drop"},
		{"mangle", "*mangle\n-A FORWARD -j DROP\nCOMMIT\n" + filterTable("-A FORWARD -j LOG"), flow, "drop"},
		{"postrouting", "*mangle\n-A POSTROUTING -o eth0 -s " + container + " -j DROP\nCOMMIT\n", flow, "drop"},
		{"postrouting, logged before", "*mangle\n-A POSTROUTING -j DROP\nCOMMIT\n" + filterTable("-A FORWARD -j LOG"), flow, "LOG"},
		{"perhaps for this host", filterTable(drop), maybeHere(flow), ""},
		{"dropped here as well", input, maybeHere(flow), "drop"},
		{"masqueraded", docker + filterTable(drop), flow, "drop"},
		{"redirected", redirect + filterTable(drop), flow, ""},
		{"redirected and dropped", redirect + input, flow, "drop"},
		{"redirected, another port", redirect + filterTable(drop), sent(tcp, "80"), "drop"},
		{"translated before a match", redirect + "*filter\n-A INPUT -j DROP\n-A FORWARD -d " + remote + " -j DROP\nCOMMIT\n", flow, ""},
		{"logged in nat", "*nat\n-A PREROUTING -j LOG\nCOMMIT\n" + filterTable(drop), flow, "LOG"},
		{"not tracked", "*raw\n-A PREROUTING -j CT --notrack\nCOMMIT\n" + filterTable("-A FORWARD -m conntrack --ctstate NEW,INVALID -j DROP"), flow, ""},
		{"not tracked, all dropped", "*raw\n-A PREROUTING -j CT --notrack\nCOMMIT\n" + filterTable(drop), flow, "drop"},
		{"others not tracked", "*raw\n-A PREROUTING -p udp -j CT --notrack\nCOMMIT\n" + filterTable("-A FORWARD -m conntrack --ctstate NEW,INVALID -j DROP"), flow, "drop"},
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+c.name, func(t *testing.T) { c.run(t, tool) })
		}
	}
}

// TestNFTDrops holds the same of what only nftables has.
func TestNFTDrops(t *testing.T) {
	const established = "ct state vmap { established : accept, related : accept, invalid : drop }\n"
	const expectation = "table ip s {\nct expectation media { protocol udp; dport 5004; timeout 1m; size 8; l3proto ip; }\n" +
		"chain f { type filter hook prerouting priority -150; tcp dport 5060 ct expectation set \"media\"; }\n}\n"
	flow := sent(tcp, "443")
	policy := func(chain, rules string) string {
		return "chain f" + chain + " { type filter hook " + chain + " priority 0; policy drop;\n" + rules + "\n}\n"
	}
	table := func(chains ...string) (all string) {
		all = "table inet t {\nset allowed { type ipv4_addr; elements = { 10.0.0.1 }; }\nset banned { type ipv4_addr; flags timeout; }\n" +
			"set seen { type ipv4_addr; flags dynamic; }\nset going { type ipv4_addr; timeout 1h; elements = { " + remote + " }; }\nlimit l { rate 1/second; }\n"
		for _, c := range chains {
			all += c
		}
		return all + "}\n"
	}
	for _, c := range []dropCase{
		{"policy", table(policy("forward", "")), flow, "drop"},
		{"after established", table(policy("forward", established)), flow, "drop"},
		{"accepted by port", table(policy("forward", established+"tcp dport { 80, 443 } accept")), flow, ""},
		{"accepted by another port", table(policy("forward", established+"tcp dport { 80, 8443 } accept")), flow, "drop"},
		{"not allowed", table(policy("forward", "ip daddr @allowed accept")), flow, "drop"},
		{"others allowed for a time", table(policy("forward", "ip daddr @banned accept")), flow, "drop"},
		{"allowed for a time", table(policy("forward", "ip daddr @going accept")), flow, ""},
		{"not among those that packets add", table(policy("forward", "ip daddr @seen accept")), flow, ""},
		{"banned for a time", table("chain f { type filter hook forward priority 0; ip daddr @going drop; }\n"), flow, ""},
		{"set update", table(policy("forward", "add @seen { ip saddr }")), flow, "set update"},
		{"named limit", table(policy("forward", "limit name l accept")), flow, "limit"},
		{"reject", forwardChain("reject"), flow, "reject"},
		{"reject with ICMP", forwardChain("reject with icmp admin-prohibited"), flow, "reject"},
		{"reject by map", "table inet t {\nchain no { reject; }\nchain f { type filter hook forward priority 0; policy drop; tcp dport vmap { 443 : jump no }; }\n}", flow, "reject"},
		{"reject in a later table", "table inet t {\nchain f { type filter hook forward priority 0; drop; }\n}\ntable inet u {\nchain f { type filter hook forward priority 10; reject; }\n}", flow, "drop"},
		{"reject in an earlier table", "table inet t {\nchain f { type filter hook forward priority 0; drop; }\n}\ntable inet u {\nchain f { type filter hook forward priority -10; reject; }\n}", flow, "reject"},
		{"reject in a table of the same priority", "table inet t {\nchain f { type filter hook forward priority 0; drop; }\n}\ntable inet u {\nchain f { type filter hook forward priority 0; reject; }\n}", flow, "reject"},
		{"verdict by mark", "table inet t {\nchain f { type filter hook forward priority 0; meta mark vmap { 0 : drop, 1 : accept }; }\n}", flow, ""},
		{"only drops by mark", "table inet t {\nchain f { type filter hook forward priority 0; policy drop; meta mark vmap { 0 : drop, 1 : drop }; }\n}", flow, "drop"},
		{"verdicts that change", "table inet t {\nmap m { type ipv4_addr : verdict; flags dynamic; }\nchain f { type filter hook forward priority 0; policy drop; ip saddr vmap @m; }\n}", flow, "not known to SCON"},
		{"device", "table netdev t {\nchain f { type filter hook ingress device lo priority 0; drop; }\n}", flow, ""},
		{"bridge", "table bridge t {\nchain f { type filter hook prerouting priority 0; tcp dport 443 drop; }\n}", flow, "drop"},
		{"bridge, all", "table bridge t {\nchain f { type filter hook prerouting priority 0; iifname veth0 drop; }\n}", flow, "drop"},
		{"bridge, another port", "table bridge t {\nchain f { type filter hook prerouting priority 0; iifname veth1 drop; }\n}", flow, ""},
		{"bridge, of a routed container", "table bridge t {\nchain f { type filter hook prerouting priority 0; tcp dport 443 drop; }\n}", routed(flow), ""},
		{"bridge, of a routed container that is rejected", "table bridge t {\nchain f { type filter hook input priority 0; tcp dport 443 drop; }\n}\n" + table(policy("forward", "reject;")), routed(flow), "reject"},
		{"log in a bridge that does not see the packets", "table bridge t {\nchain f { type filter hook prerouting priority 0; log; }\n}\n" + table(policy("forward", "")), routed(flow), "drop"},
		{"log in a bridge", "table bridge t {\nchain f { type filter hook prerouting priority 0; log; }\n}\n" + table(policy("forward", "")), flow, "log"},
		{"dropped in nat", "table ip t {\nchain f { type nat hook prerouting priority -100; drop; }\n}", flow, ""},
		{"translated by a map", "table ip t {\nchain f { type nat hook prerouting priority -100; dnat to tcp dport map { 443 : 10.0.0.1 }; }\n}\n" + table(policy("forward", "ip daddr 10.0.0.1 accept")), flow, ""},
		{"translated by a map, another port", "table ip t {\nchain f { type nat hook prerouting priority -100; dnat to tcp dport map { 80 : 10.0.0.1 }; }\n}\n" + table(policy("forward", "ip daddr 10.0.0.1 accept")), flow, "drop"},
		{"in another zone", "table ip t {\nchain f { type filter hook prerouting priority -300; ct zone set 5; }\n}\n" + table(policy("forward", established)), flow, ""},
		{"output and input only", table(policy("input", "")), flow, ""},
		{"perhaps expected", expectation + table(policy("forward", established)), sent(udp, "5004"), ""},
		{"perhaps expected, all dropped", expectation + table(policy("forward", ""), policy("input", "")), sent(udp, "5004"), "drop"},
		{"perhaps expected and translated for this host", expectation + table(policy("forward", "")), sent(udp, "5004"), ""},
		{"perhaps expected, another protocol accepted", expectation + table(policy("forward", "ct state related udp dport 5004 accept"), policy("input", "")), flow, "drop"},
		{"quota", table(policy("forward", "quota 10 mbytes accept")), flow, "quota"},
		{"synproxy", table(policy("forward", "synproxy mss 1460 wscale 7")), flow, "synproxy"},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, nft) })
	}
}

// TestHelperDrops holds that a rule which has a helper read along has conntrack
// expect connections.
func TestHelperDrops(t *testing.T) {
	const established = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -j DROP"
	zero, ftp := make([]byte, 64), append(append(make([]byte, 12), "ftp"...), make([]byte, 49)...)
	if xtCT("", zero).expects || !xtCT("", ftp).expects || !xtCT("", nil).expects {
		t.Error("target CT: with a helper it expects connections, and without it does not")
	}
	dropCase{"no helper", "*raw\n-A PREROUTING -p tcp --dport 21 -j CT --ctevents assured\nCOMMIT\n" + filterTable(established), sent(udp, "5004"), "drop"}.run(t, iptables["nft"])
}

// TestDropsMustBeRead holds that nothing is discardable by a ruleset of which
// only the part was read that established connections meet.
func TestDropsMustBeRead(t *testing.T) {
	if _, ok := read(t, Options{}, nft, forwardChain("drop")).Discardable(sent(tcp, "443")); ok {
		t.Error("discardable by a ruleset that was read in part")
	}
}

// TestTouchesWithDropsRead holds that what else Discardable needs does not keep
// connections regular.
func TestTouchesWithDropsRead(t *testing.T) {
	rules := "table ip t {\nchain n { type nat hook prerouting priority -100; limit rate 1/second; }\n" +
		"chain i { type filter hook input priority 0; log; }\nchain f { type filter hook forward priority 0; tcp dport 80 log; drop; }\n}\n"
	touchCase{rules: rules, conn: outbound(tcp, "443")}.run(t, Options{Drops: true}, nft)
	touchCase{rules: rules, conn: outbound(tcp, "80"), why: "log"}.run(t, Options{Drops: true}, nft)
}
