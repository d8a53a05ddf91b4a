package rules

import (
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// touchCase says whether a connection is touched by rules, and why.
type touchCase struct {
	name  string
	rules string
	conn  Conn
	why   string // "" if it is not touched
}

func (c touchCase) run(t *testing.T, opts Options, tool string) {
	t.Helper()
	rule, touched := read(t, opts, tool, c.rules).Touches(c.conn)
	if touched != (c.why != "") || rule.Why != c.why {
		t.Errorf("touched = %v by %q (%s), want %q", touched, rule.Text, rule.Why, c.why)
	}
	if touched && (rule.Table == "" || rule.Chain == "") {
		t.Errorf("a rule without a name: %+v", rule)
	}
}

// TestNFTPerPacket holds that each kind of rule that judges single packets
// keeps connections regular.
func TestNFTPerPacket(t *testing.T) {
	for rule, why := range map[string]string{
		"limit rate 10/second accept":                   "limit",
		"quota 10 mbytes drop":                          "quota",
		"ct count over 10 drop":                         "ct count",
		"ct bytes > 100000 drop":                        "ct bytes",
		"ct mark set ct mark ^ 1":                       "ct mark",
		"ct mark set meta mark << 1":                    "ct mark",
		"ct mark set ct mark map { 0 : 1, 1 : 2 }":      "ct mark",
		"ct mark set ct mark map { 0-9 : 1 }":           "ct mark",
		"ct mark set jhash ct mark mod 8":               "ct mark",
		"meta priority 1:2 drop":                        "meta priority",
		"vlan pcp 3 drop":                               "payload @ll,112,8",
		"ct label set 3":                                "ct label set",
		"ct packets > 100 drop":                         "ct packets",
		"numgen inc mod 2 0 drop":                       "numgen inc",
		"numgen random mod 2 0 drop":                    "numgen random",
		"meta random < 1000 drop":                       "meta random",
		"ip length > 1000 drop":                         "ip length",
		"meta length 100-200 drop":                      "meta length",
		"ip ttl < 5 drop":                               "ip ttl",
		"ip ecn ce drop":                                "ip tos",
		"ip id 7 drop":                                  "ip id",
		"tcp flags & psh == psh drop":                   "tcp flags",
		"tcp window 0 drop":                             "tcp window",
		"tcp option maxseg exists drop":                 "option",
		"@th,160,32 0x12345678 drop":                    "payload @th,160,32",
		"@nh,160,8 1 drop":                              "payload @nh,160,8",
		"meta hour 08:00-17:00 drop":                    "meta hour",
		"meta day Monday drop":                          "meta day",
		"meta cpu 1 drop":                               "meta cpu",
		"log":                                           "log",
		"synproxy mss 1460 wscale 7":                    "synproxy",
		"meta nftrace set 1":                            "meta nftrace set",
		"update @seen { ip saddr }":                     "set update",
		"update @seen { ip saddr limit rate 1/second }": "set update",
		"ip ttl set 64":                                 "payload @nh,64,16 set",
		"ip ecn set ce":                                 "ip ecn set",
		"@nh,8,8 set @nh,8,8 ^ 0x1":                     "ip ecn set",
		"@ll,128,16 > 1000 drop":                        "payload @ll,128,16",
		"tcp dport set 99":                              "dport set",
		"limit name l drop":                             "limit",
		"quota name q drop":                             "quota",
		"limit name tcp dport map @limits drop":         "limit",
		"meta mark set numgen random mod 4":             "numgen random",
		"ip saddr @metered drop":                        "metered (its elements judge packets)",
	} {
		t.Run(rule, func(t *testing.T) {
			rules := `table inet t {
				limit l { rate 10/second; }
				quota q { 10 mbytes; }
				map limits { type inet_service : limit; elements = { 443 : "l" }; }
				set seen { type ipv4_addr; flags dynamic; size 100; }
				set metered { type ipv4_addr; limit rate 1/second; elements = { ` + container + ` }; }
				chain f { type filter hook forward priority 0; ` + rule + `; }
			}`
			touchCase{rules: rules, conn: outbound(tcp, "443"), why: why}.run(t, Options{}, nft)
		})
	}
}

// TestNFTWithoutFlags holds that a rule about a bit which is set in all segments of TCP
// judges datagrams, whose data is there.
func TestNFTWithoutFlags(t *testing.T) {
	const rules = "table inet t { chain f { type filter hook forward priority 0; @th,107,1 0 drop; }; }"
	touchCase{rules: rules, conn: outbound(tcp, "443")}.run(t, Options{}, nft)
	touchCase{rules: rules, conn: outbound(udp, "443"), why: "tcp flags"}.run(t, Options{}, nft)
}

// TestNFTSilent holds that rules keep connections express that say the same of
// all their packets.
func TestNFTSilent(t *testing.T) {
	for _, rule := range []string{
		"counter",
		"meta mark set 7",
		"meta mark 7 accept",
		"meta mark set ct mark ^ 1",
		"meta mark set meta mark << 1",
		"meta mark set ct mark map { 0 : 1, 1 : 0 }",
		"ct mark set ct mark & 1",
		"meta mark set ct mark map { 1 : 3, 2 : 3, 3 : 3 }",
		"@ll,0,48 0x020000000001 drop",
		"meta priority set 7",
		"ip dscp set cs1",
		"ip dscp cs1 accept",
		"ct state new limit rate 1/second accept",
		"ct state new ct label set 3",
		"ct label 3 drop",
		"vlan id 5 drop",
		"ct state invalid limit rate 1/second log",
		"ct state related log",
		"tcp flags & (syn|ack) == syn limit rate 1/second accept",
		"tcp flags & (fin|syn|rst|psh|ack|urg) == 0x0 log",
		"tcp flags syn tcp option maxseg size set rt mtu",
		"ip frag-off & 0x1fff != 0 log",
		"ip protocol icmp limit rate 5/second accept",
		"meta pkttype { broadcast, multicast } limit rate 3/second log",
		"meta nfproto ipv6 log",
		"fib daddr type local drop",
		"ip saddr @blocked drop",
		"counter name tcp dport map @counters",
		"limit name tcp dport map @limits",
		"ip saddr @changing drop",
		"meta mark set jhash ip saddr . tcp dport mod 4",
		"reject",
		"ether saddr 02:00:00:00:00:01 drop",
		"ct zone set 5",
		"skuid 0 drop",
	} {
		t.Run(rule, func(t *testing.T) {
			rules := `table inet t {
				set blocked { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }
				set changing { type ipv4_addr; timeout 1h; }
				counter web { }
				map counters { type inet_service : counter; elements = { 443 : "web" }; }
				limit slow { rate 1/second; }
				map limits { type inet_service : limit; elements = { 80 : "slow" }; }
				chain f { type filter hook forward priority 0; ` + rule + `; }
			}`
			touchCase{rules: rules, conn: outbound(tcp, "443")}.run(t, Options{}, nft)
		})
	}
}

// TestNFTConditions holds that conditions exclude connections, and only those
// that they do.
func TestNFTConditions(t *testing.T) {
	for _, c := range []struct {
		condition string
		conn      Conn
		touched   bool
	}{
		{"tcp dport 443", outbound(tcp, "443"), true},
		{"tcp sport 443", outbound(tcp, "443"), true}, // of the replies
		{"tcp dport 80", outbound(tcp, "443"), false},
		{"udp dport 443", outbound(tcp, "443"), false},
		{"th dport 443", outbound(udp, "443"), true},
		{"tcp dport 400-500", outbound(tcp, "443"), true},
		{"tcp dport != 400-500", outbound(tcp, "443"), true}, // the replies
		{"tcp dport 500-600", outbound(tcp, "443"), false},
		{"tcp dport { 80, 443 }", outbound(tcp, "443"), true},
		{"tcp dport { 80, 8443 }", outbound(tcp, "443"), false},
		{"tcp dport { 80, 440-450 }", outbound(tcp, "443"), true},
		{"tcp dport { 80, 450-460 }", outbound(tcp, "443"), false},
		{"tcp dport 8080", published(tcp, "80"), false}, // translated before
		{"tcp dport 80", published(tcp, "80"), true},
		{"meta l4proto tcp ct original proto-dst 8080", published(tcp, "80"), true},
		{"meta l4proto tcp ct original proto-dst 80", published(tcp, "80"), false},
		{"ct reply ip saddr " + container, published(tcp, "80"), true},
		{"ip saddr " + container, outbound(tcp, "443"), true},
		{"ip daddr " + container, outbound(tcp, "443"), true},
		{"ip daddr " + host, outbound(tcp, "443"), false}, // translated before and after
		{"ip saddr 172.16.0.0/12", outbound(tcp, "443"), true},
		{"ip saddr 172.17.0.0/16", outbound(tcp, "443"), true},
		{"ip saddr 10.0.0.0/8", outbound(tcp, "443"), false},
		{"ip saddr != 172.17.0.0/16", outbound(tcp, "443"), true}, // the replies
		{"ip saddr { 10.0.0.0/8, 172.17.0.0-172.17.0.9 }", outbound(tcp, "443"), true},
		{"ip saddr . tcp dport { 172.17.0.2 . 443, 10.0.0.1 . 80 }", outbound(tcp, "443"), true},
		{"ip saddr . tcp dport { 172.17.0.2 . 80, 10.0.0.1 . 443 }", outbound(tcp, "443"), false},
		{"ip saddr . tcp dport { 172.17.0.0/16 . 400-450 }", outbound(tcp, "443"), true},
		{"ip saddr . tcp dport { 172.17.0.0/16 . 80-100 }", outbound(tcp, "443"), false},
		{"meta mark . ip saddr { 1 . 172.17.0.2 }", outbound(tcp, "443"), true},
		{"meta mark . ip saddr { 1 . 172.17.0.3 }", outbound(tcp, "443"), false},
		{"iifname docker0", outbound(tcp, "443"), true},
		{"iifname docker0 oifname docker0", outbound(tcp, "443"), false},
		{"iifname wlan0", outbound(tcp, "443"), false},
		{`iifname "dock*"`, outbound(tcp, "443"), true},
		{`iifname "br-*"`, outbound(tcp, "443"), false},
		{"iifname { docker0, wlan0 }", outbound(tcp, "443"), true},
		{"iifname { wlan0, wlan1 }", outbound(tcp, "443"), false},
		{"iif lo", outbound(tcp, "443"), false},
		{"iifname docker0 tcp dport 443", outbound(tcp, "443"), true},
		{"iifname eth0 tcp dport 443", outbound(tcp, "443"), false}, // only replies come in there
		{"ct direction reply iifname docker0", outbound(tcp, "443"), false},
		{"ct direction reply iifname docker0", published(tcp, "80"), true},
		{"ct status dnat", published(tcp, "80"), true},
		{"ct status dnat", outbound(tcp, "443"), false},
		{"ct state new", outbound(udp, "443"), false},
		{"ct state new", unreplied(outbound(udp, "443")), true},
		{"ct state established", unreplied(outbound(udp, "443")), true},
		{"ct state != established", outbound(tcp, "443"), false},
		{"ct state { related, established }", outbound(tcp, "443"), true},
		{"ct state { related, new }", outbound(tcp, "443"), false},
		{"meta mark 7", outbound(tcp, "443"), true}, // not known
		{"ip saddr @blocked", outbound(tcp, "443"), false},
		{"ip saddr @changing", outbound(tcp, "443"), false},
		{"ip saddr != @changing", outbound(tcp, "443"), true},
		{"ip saddr @going", outbound(tcp, "443"), true},
		{"ip saddr != @going ip saddr " + container, outbound(tcp, "443"), true}, // once it has gone
		{"ip saddr @filled", outbound(tcp, "443"), true},
		{"ip saddr @seen", outbound(tcp, "443"), true},
		{"ip saddr != @blocked", outbound(tcp, "443"), true},
	} {
		name := "regular"
		if !c.touched {
			name = "express"
		}
		t.Run(c.condition+" "+name, func(t *testing.T) {
			rules := `table inet t {
				set blocked { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }
				set changing { type ipv4_addr; timeout 1h; }
				set going { type ipv4_addr; timeout 1h; elements = { ` + container + ` }; }
				set filled { type ipv4_addr; timeout 1h; }
				set seen { type ipv4_addr; flags dynamic; }
				chain i { type filter hook input priority 0; add @filled { ip saddr }; }
				chain f { type filter hook forward priority 0; ` + c.condition + ` limit rate 10/second accept; }
			}`
			want := touchCase{rules: rules, conn: c.conn}
			if c.touched {
				want.why = "limit"
			}
			want.run(t, Options{}, nft)
		})
	}
}

// TestNFTWays holds that verdicts, jumps and hooks are followed.
func TestNFTWays(t *testing.T) {
	conn := outbound(tcp, "443")
	for _, c := range []touchCase{
		{"established first", forwardChain("ct state established,related accept\nlimit rate 1/second accept"), conn, ""},
		{"established by a map", forwardChain("ct state vmap { established : accept, related : accept, invalid : drop }\nlog"), conn, ""},
		{"established last", forwardChain("limit rate 1/second accept\nct state established,related accept"), conn, "limit"},
		{"one direction accepted", forwardChain("oifname docker0 ct state established accept\nlog"), conn, "log"},
		{"both directions accepted", forwardChain("oifname docker0 ct state established accept\niifname docker0 accept\nlog"), conn, ""},
		{"maybe accepted", forwardChain("meta mark 1 accept\nlog"), conn, "log"},
		{"accepted by length", forwardChain("meta length < 100 accept\nlog"), conn, "meta length"},
		{"dropped before", forwardChain("ip saddr " + container + " drop\nip daddr " + container + " drop\nlog"), conn, ""},
		{
			"jump", "table ip t {\nchain logging { log; }\nchain f { type filter hook forward priority 0; tcp dport 443 jump logging; }\n}", conn, "log",
		},
		{
			"jump for others", "table ip t {\nchain logging { log; }\nchain f { type filter hook forward priority 0; tcp dport 80 jump logging; }\n}", conn, "",
		},
		{
			"accepted in a chain", "table ip t {\nchain ok { ct state established accept; }\nchain f { type filter hook forward priority 0; jump ok; log; }\n}", conn, "",
		},
		{
			"return from a chain", "table ip t {\nchain ok { ct state established return; log; }\nchain f { type filter hook forward priority 0; jump ok; }\n}", conn, "",
		},
		{
			"goto does not come back", "table ip t {\nchain ok { ct state established return; }\nchain f { type filter hook forward priority 0; goto ok; log; }\n}", conn, "",
		},
		{
			"jump by map", "table ip t {\nchain a { log; }\nchain b { accept; }\nchain f { type filter hook forward priority 0; tcp dport vmap { 443 : jump a, 80 : jump b }; }\n}", conn, "log",
		},
		{
			"jump by map for others", "table ip t {\nchain a { log; }\nchain b { accept; }\nchain f { type filter hook forward priority 0; tcp dport vmap { 443 : jump b, 80 : jump a }; }\n}", conn, "",
		},
		{
			"jump by map, unknown", "table ip t {\nchain a { log; }\nchain b { accept; }\nchain f { type filter hook forward priority 0; meta mark vmap { 1 : jump b, 2 : jump a }; }\n}", conn, "log",
		},
		{
			"jump by interval map", "table ip t {\nchain a { log; }\nchain b { accept; }\nchain f { type filter hook forward priority 0; ip saddr vmap { 172.17.0.0/16 : jump a, 10.0.0.0/8 : jump b }; }\n}", conn, "log",
		},
		{
			"value by map", forwardChain("meta mark set ip saddr map { 172.17.0.2 : 1 }\nmeta mark 1 counter"), conn, "",
		},
		{"input", "table ip t {\nchain f { type filter hook input priority 0; log; }\n}", conn, ""},
		{"output", "table ip t {\nchain f { type filter hook output priority 0; log; }\n}", conn, ""},
		{"IPv6", "table ip6 t {\nchain f { type filter hook forward priority 0; log; }\n}", conn, ""},
		{"nat", "table ip t {\nchain f { type nat hook postrouting priority 100; limit rate 1/second masquerade; }\n}", conn, ""},
		{"prerouting", "table ip t {\nchain f { type filter hook prerouting priority -150; log; }\n}", conn, "log"},
		{"before conntrack", "table ip t {\nchain f { type filter hook prerouting priority -300; ct state new log; }\n}", conn, "log"},
		{"before translation", "table ip t {\nchain f { type filter hook prerouting priority -150; tcp dport 8080 log; }\n}", published(tcp, "80"), "log"},
		{"after translation", "table ip t {\nchain f { type filter hook prerouting priority 0; tcp dport 8080 log; }\n}", published(tcp, "80"), ""},
		{"postrouting", "table ip t {\nchain f { type filter hook postrouting priority 150; ip saddr " + host + " log; }\n}", conn, "log"},
		{"postrouting before translation", "table ip t {\nchain f { type filter hook postrouting priority 0; ip saddr " + host + " log; }\n}", conn, ""},
		{"bridge", "table bridge t {\nchain f { type filter hook prerouting priority 0; iifname veth0 limit rate 1/second accept; }\n}", conn, "limit"},
		{"bridge, other port", "table bridge t {\nchain f { type filter hook prerouting priority 0; iifname veth1 limit rate 1/second accept; }\n}", conn, ""},
		{"bridge, what stays in it", "table bridge t {\nchain f { type filter hook forward priority 0; limit rate 1/second accept; }\n}", conn, ""},
		{"bridge, ARP", "table bridge t {\nchain f { type filter hook prerouting priority 0; ether type arp limit rate 1/second accept; }\nchain o { type filter hook postrouting priority 0; ether type arp limit rate 1/second accept; }\n}", conn, ""},
		{"bridge, IPv6", "table bridge t {\nchain f { type filter hook postrouting priority 0; ip6 daddr ::1 limit rate 1/second accept; }\n}", conn, ""},
		{"bridge, IPv4", "table bridge t {\nchain f { type filter hook postrouting priority 0; ether type ip limit rate 1/second accept; }\n}", conn, "limit"},
		{"bridge, VLAN", "table bridge t {\nchain f { type filter hook postrouting priority 0; vlan id 5 limit rate 1/second accept; }\n}", conn, "limit"},
		{"dormant", "table ip t {\nflags dormant;\nchain f { type filter hook forward priority 0; log; }\n}", conn, ""},
		{"dormant beside another", "table ip s {\nflags dormant;\nchain f { type filter hook forward priority 0; log; }\n}\ntable ip t {\nchain f { type filter hook forward priority 0; limit rate 1/second accept; }\n}", conn, "limit"},
		{"option of TCP in UDP", forwardChain("tcp option timestamp exists drop\ntcp option maxseg size 1-100 drop\nreset tcp option sack-perm"), outbound(udp, "443"), ""},
		{"no option of TCP in UDP", forwardChain("tcp option timestamp missing limit rate 1/second accept"), outbound(udp, "443"), "limit"},
		{
			"map of networks and protocols", "table ip t {\nchain a { log; }\nmap m { type ipv4_addr . inet_proto : verdict; flags interval; elements = { 172.17.0.0/24 . udp : jump a, 172.18.0.0/16 . tcp : jump a }; }\nchain f { type filter hook forward priority 0; ip saddr . meta l4proto vmap @m; }\n}", conn, "",
		},
		{
			"map of networks and its protocol", "table ip t {\nchain a { log; }\nmap m { type ipv4_addr . inet_proto : verdict; flags interval; elements = { 172.17.0.0/24 . tcp : jump a }; }\nchain f { type filter hook forward priority 0; ip saddr . meta l4proto vmap @m; }\n}", conn, "log",
		},
		{"chain within a rule", forwardChain("tcp dport 443 jump { log; }"), conn, "log"},
		{"chain within a rule for others", forwardChain("tcp dport 80 jump { log; }"), conn, ""},
		{"policy only", forwardChain(""), conn, ""},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, Options{}, nft) })
	}
}

// Express packets that leave by a bridge pass the output hook of bridges, without conntrack's
// entry and without a route. A rule that asks for these keeps regular what it may match; a
// rule that judges packets by anything else judges them, too.
func TestOutputOfBridge(t *testing.T) {
	conn := outbound(tcp, "443")
	over := conn
	over.Outside = []Device{{Name: "br0", Index: 9, Bridge: true}}
	incoming := published(tcp, "80")
	incoming.Outside = over.Outside
	lacking := func(what string) string { return what + ", which express packets lack there" }
	chainAt := func(hook, rules string) string {
		return "table bridge t {\nchain f { type filter hook " + hook + " priority 0; " + rules + "; }\n}"
	}
	for _, c := range []touchCase{
		{"state", chainAt("output", "meta protocol ip ct state invalid drop"), over, lacking("ct state")},
		{"state, postrouting", chainAt("postrouting", "ct state established accept"), over, lacking("ct state")},
		{"realm", chainAt("output", "meta rtclassid 1 drop"), over, lacking("rtclassid")},
		{"realm, postrouting", chainAt("postrouting", "meta rtclassid 1 drop"), over, lacking("rtclassid")},
		{"replies", chainAt("output", "meta rtclassid 1 drop"), incoming, lacking("rtclassid")},
		{"for whom", chainAt("output", "meta pkttype host accept"), over, lacking("meta pkttype")},
		{"mark", chainAt("output", "ct mark 1 drop"), over, lacking("ct mark")},
		{"mark set", chainAt("output", "ct mark set 1"), over, lacking("ct mark")},
		{"map", chainAt("output", "ct state vmap { invalid : drop, established : accept }"), over, lacking("ct state")},
		{"no bridge", chainAt("output", "meta rtclassid 1 drop"), conn, ""},
		{"others", chainAt("output", "ip saddr 203.0.113.77 meta rtclassid 1 drop"), over, ""},
		{"accepted before", chainAt("output", "tcp dport 443 accept\nmeta rtclassid 1 drop"), over, ""},
		{"forward", chainAt("forward", "meta rtclassid 1 drop"), over, ""},
		{"limit", chainAt("output", "oifname eth9 limit rate 1/second accept"), over, ""},
		{"limit, then realm", chainAt("output", "tcp dport 443 limit rate 1/second meta rtclassid 1 drop"), over, lacking("rtclassid")},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, Options{}, nft) })
	}
}

func TestRuleText(t *testing.T) {
	r := read(t, Options{}, nft, forwardChain(`iifname "docker*" ip saddr 172.17.0.0/16 tcp dport { 80, 443 } limit rate 5/second log`))
	all := r.PerPacket()
	if len(all) != 1 {
		t.Fatalf("%d rules, want 1: %v", len(all), all)
	}
	const text = `iifname "docker*" meta nfproto 0x02 ip saddr 172.17.0.0/16 meta l4proto tcp dport { ... } limit log`
	if all[0].Text != text || all[0].String() != "inet t f handle 3 (limit)" {
		t.Errorf("got %q, %q", all[0].Text, all[0])
	}
}

// TestDeviceHooks holds that chains of devices are followed on those devices
// that a connection's packets pass.
func TestDeviceHooks(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		ip link add docker0 type bridge
		ip link add veth0 type veth peer name other
		ip link add eth0 type veth peer name remote
	`)
	for _, c := range []struct{ family, hook, rule, why string }{
		{"netdev", "ingress device veth0", "limit rate 1/second accept", "limit"},
		{"netdev", "ingress device docker0", "limit rate 1/second accept", "limit"},
		{"netdev", "ingress device eth0", "limit rate 1/second accept", "limit"},
		{"netdev", "ingress device other", "limit rate 1/second accept", ""},
		{"netdev", "ingress device eth0", "ip saddr " + container + " limit rate 1/second accept", ""},
		{"netdev", "ingress device veth0", "ip saddr " + container + " limit rate 1/second accept", "limit"},
		{"netdev", "egress device eth0", "ip saddr " + host + " limit rate 1/second accept", "limit"},
		{"netdev", "egress device eth0", "ip dscp cs1 drop", ""},
		{"netdev", "egress device other", "limit rate 1/second accept", ""},
		{"inet", "ingress device veth0", "tcp dport 443 limit rate 1/second accept", "limit"},
		{"inet", "ingress device veth0", "tcp dport 80 limit rate 1/second accept", ""},
	} {
		t.Run(c.family+" "+c.hook+" "+c.rule, func(t *testing.T) {
			load(t, ns, nft, "flush ruleset\ntable "+c.family+" t {\nchain f { type filter hook "+c.hook+" priority 0; "+c.rule+"; }\n}")
			nstest.Do(t, ns, func() {
				r, err := Read(Options{})
				if err != nil {
					t.Fatal(err)
				}
				if rule, _ := r.Touches(outbound(tcp, "443")); rule.Why != c.why {
					t.Errorf("touched by %q, want %q", rule.Why, c.why)
				}
			})
		})
	}
}

// TestAssured holds that rules that ask whether a connection is assured judge packets of UDP until
// it is.
func TestAssured(t *testing.T) {
	const nftRule, xtRule = "ct status assured drop", "-A FORWARD -m conntrack ! --ctstatus ASSURED -j DROP"
	assured := outbound(udp, "53")
	assured.Status |= statusAssured
	for name, c := range map[string]struct {
		conn Conn
		why  [2]string // of both tools
	}{
		"not assured": {outbound(udp, "53"), [2]string{"ct status", "conntrack expiration or status"}},
		"no reply":    {unreplied(outbound(udp, "53")), [2]string{"ct status", "conntrack expiration or status"}},
		"assured":     {conn: assured},
	} {
		t.Run(name, func(t *testing.T) {
			touchCase{rules: forwardChain(nftRule), conn: c.conn, why: c.why[0]}.run(t, Options{}, nft)
			touchCase{rules: filterTable(xtRule), conn: c.conn, why: c.why[1]}.run(t, Options{}, xtNFT)
			touchCase{rules: filterTable(xtRule), conn: c.conn, why: c.why[1]}.run(t, Options{}, xtLegacy)
		})
	}
}
