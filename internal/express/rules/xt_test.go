package rules

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/test/bed/nstest"
)

// iptables is both of its kinds: what they say must be understood alike.
var iptables = map[string]string{"nft": xtNFT, "legacy": xtLegacy}

// TestXTPerPacket holds that each kind of rule of iptables that judges single
// packets keeps connections regular.
func TestXTPerPacket(t *testing.T) {
	for rule, why := range map[string]string{
		"-m limit --limit 5/sec -j ACCEPT":                                                   "limit",
		"-m hashlimit --hashlimit-upto 5/sec --hashlimit-name h -j ACCEPT":                   "hashlimit",
		"-m connbytes --connbytes 1000: --connbytes-dir both --connbytes-mode bytes -j DROP": "connbytes",
		"-m connlimit --connlimit-above 5 -j DROP":                                           "connlimit",
		"-m statistic --mode nth --every 2 --packet 0 -j DROP":                               "statistic",
		"-m statistic --mode random --probability 0.5 -j DROP":                               "statistic",
		"-m string --algo bm --string secret -j DROP":                                        "string",
		"-m u32 --u32 0>>22&0x3C@4=0x29 -j DROP":                                             "u32",
		`-m bpf --bytecode "1,6 0 0 0" -j DROP`:                                              "bpf",
		"-m time --timestart 08:00 --timestop 17:00 -j DROP":                                 "time",
		"-m recent --name r --set -j ACCEPT":                                                 "recent",
		"-m length --length 1000: -j DROP":                                                   "length",
		"-m physdev --physdev-in veth1 -j DROP":                                              "physdev",
		"-m physdev ! --physdev-out veth+ --physdev-is-bridged -j DROP":                      "physdev",
		"-m ttl --ttl-lt 5 -j DROP":                                                          "ttl",
		"-m ecn --ecn-ip-ect 1 -j DROP":                                                      "ecn",
		"-p tcp --tcp-flags PSH PSH -j DROP":                                                 "tcp flags or options",
		"-p tcp --tcp-option 8 -j DROP":                                                      "tcp flags or options",
		"-m connlabel --label 3 --set":                                                       "connlabel",
		"-j LOG":                                                                             "LOG",
		"-j NFLOG":                                                                           "NFLOG",
		"-j AUDIT --type accept":                                                             "AUDIT",
		"-j TEE --gateway 10.0.0.9":                                                          "TEE",
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+rule, func(t *testing.T) {
				want := why
				if kind == "nft" {
					want = nativeName(rule, why)
				}
				touchCase{rules: filterTable("-A FORWARD " + rule), conn: outbound(tcp, "443"), why: want}.run(t, Options{}, tool)
			})
		}
	}
}

// nativeName is what the reason is called where iptables-nft uses an expression
// of nftables in place of the extension.
func nativeName(rule, why string) string {
	switch {
	case why == "NFLOG":
		return "log"
	case strings.Contains(rule, "--tcp-flags"):
		return "tcp flags"
	default:
		return why
	}
}

// TestXTSilent holds that rules keep connections express that say the same of
// all their packets, or cannot touch them.
func TestXTSilent(t *testing.T) {
	for _, rule := range []string{
		"-j MARK --set-mark 7",
		"-j MARK --xor-mark 1",
		"-j CONNMARK --left-shift-mark 1 --restore-mark",
		"-m mark --mark 7 -j ACCEPT",
		"-j CONNMARK --restore-mark",
		"-j CONNMARK --and-mark 1",
		"-m connmark --mark 7 -j ACCEPT",
		"-m comment --comment limit -j ACCEPT",
		"-m addrtype --dst-type LOCAL -j DROP",
		"-m physdev --physdev-is-bridged -j ACCEPT",
		"-m physdev ! --physdev-is-in -j ACCEPT",
		"-m mac --mac-source 02:00:00:00:00:01 -j DROP",
		"-m dscp --dscp-class cs1 -j DROP",
		"-m tos --tos 0x10/0x3c -j DROP",
		"-m pkttype --pkt-type broadcast -m limit -j LOG",
		"-m conntrack --ctstate NEW -m limit -j LOG",
		"-m conntrack --ctstate INVALID -j LOG",
		"-m state --state NEW -m recent --name r --set",
		"-m conntrack ! --ctstate ESTABLISHED -j LOG",
		"-m conntrack --ctstate DNAT -j LOG",
		"-m conntrack --ctorigdst 10.0.0.1 -j LOG",
		"-m conntrack --ctorigdstport 80 -j LOG",
		"-m conntrack --ctproto udp -j LOG",
		"-p tcp --syn -m limit --limit 5/sec -j ACCEPT",
		"-p tcp --syn -m connlimit --connlimit-above 20 -j REJECT",
		"-p tcp --tcp-flags ALL NONE -j LOG",
		"-p tcp --tcp-flags ALL FIN,PSH,URG -j LOG",
		"-p tcp --tcp-flags SYN,FIN SYN,FIN -j LOG",
		"-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
		"-f -j LOG",
		"-p icmp -m limit --limit 1/sec -j ACCEPT",
		"-p icmp --icmp-type echo-request -m limit -j ACCEPT",
		"-p tcp --dport 80 -j LOG",
		"-p tcp -m multiport --dports 80,8000:8100 -j LOG",
		"-p tcp -m multiport --ports 80,8000:8100 -j LOG",
		"-p tcp -m multiport ! --ports 400:500 -j LOG",
		"-p udp --dport 443 -j LOG",
		"-s 10.0.0.0/8 -j LOG",
		"-d 192.0.2.1 -j LOG",
		"-i wlan+ -j LOG",
		"-i docker0 -o docker0 -j LOG",
		"-m iprange --src-range 10.0.0.1-10.0.0.9 -j LOG",
		"-i docker0 -p tcp --sport 443 -j LOG",
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+rule, func(t *testing.T) {
				touchCase{rules: filterTable("-A FORWARD " + rule), conn: outbound(tcp, "443")}.run(t, Options{}, tool)
			})
		}
	}
}

// TestXTConditions holds that conditions do not exclude connections that they
// are met by.
func TestXTConditions(t *testing.T) {
	for rule, conn := range map[string]Conn{
		"-p tcp --dport 443":                              outbound(tcp, "443"),
		"-p tcp --sport 443":                              outbound(tcp, "443"),
		"-p tcp ! --dport 80":                             outbound(tcp, "443"),
		"-p tcp --dport 400:500":                          outbound(tcp, "443"),
		"-p tcp -m multiport --dports 80,400:500":         outbound(tcp, "443"),
		"-p tcp -m multiport ! --dports 80":               outbound(tcp, "443"),
		"-p tcp -m multiport ! --ports 80,8000:8100":      outbound(tcp, "443"),
		"-p udp --dport 53":                               outbound(udp, "53"),
		"-p tcp --dport 80":                               published(tcp, "80"),
		"-m conntrack --ctstate DNAT":                     published(tcp, "80"),
		"-m conntrack --ctorigdst 192.0.2.1":              published(tcp, "80"),
		"-m conntrack --ctorigdstport 8080 --ctproto tcp": published(tcp, "80"),
		"-m conntrack --ctstate RELATED,ESTABLISHED":      outbound(tcp, "443"),
		"-m conntrack --ctstate SNAT":                     outbound(tcp, "443"),
		"-m conntrack --ctstate NEW,SNAT":                 outbound(tcp, "443"),
		"-m conntrack --ctdir REPLY":                      outbound(tcp, "443"),
		"-m conntrack --ctstatus SEEN_REPLY":              outbound(tcp, "443"),
		"-m conntrack --ctstatus ASSURED":                 outbound(tcp, "443"),
		"-m conntrack --ctstate NEW":                      unreplied(outbound(udp, "53")),
		"-m state --state ESTABLISHED":                    outbound(tcp, "443"),
		"! -s 10.0.0.0/8":                                 outbound(tcp, "443"),
		"-s 172.16.0.0/12":                                outbound(tcp, "443"),
		"-d 172.17.0.2":                                   outbound(tcp, "443"),
		"-i docker0":                                      outbound(tcp, "443"),
		"-i dock+":                                        outbound(tcp, "443"),
		"! -i docker0":                                    outbound(tcp, "443"),
		"-i docker0 -o eth0":                              outbound(tcp, "443"),
		"-i docker0 ! -o docker0":                         outbound(tcp, "443"),
		"-m iprange --src-range 172.17.0.1-172.17.0.9":    outbound(tcp, "443"),
		"-m iprange ! --dst-range 10.0.0.1-10.0.0.9":      outbound(tcp, "443"),
		"! -f":                           outbound(tcp, "443"),
		"-p tcp ! --syn":                 outbound(tcp, "443"),
		"-m mark --mark 7":               outbound(tcp, "443"),
		"-m addrtype --dst-type UNICAST": outbound(tcp, "443"),
		"-m conntrack --ctstate ESTABLISHED -p tcp --dport 443": outbound(tcp, "443"),
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+rule, func(t *testing.T) {
				touchCase{rules: filterTable("-A FORWARD " + rule + " -m limit -j ACCEPT"), conn: conn, why: "limit"}.run(t, Options{}, tool)
			})
		}
	}
}

// TestXTSet holds that a look into a set of ipset judges packets if it compares
// the counters of the set's elements, and only then.
func TestXTSet(t *testing.T) {
	for compare, why := range map[string]string{
		"": "", "! --update-counters": "", "--packets-gt 100": "set", "! --packets-eq 100": "set", "--bytes-lt 5000": "set",
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+compare, func(t *testing.T) {
				ns := nstest.New(t)
				nstest.Run(t, ns, "ipset create seen hash:ip counters")
				load(t, ns, tool, filterTable("-A FORWARD -m set --match-set seen src "+compare+" -j DROP"))
				rule, touched := readIn(t, ns, Options{}).Touches(outbound(tcp, "443"))
				if touched != (why != "") || rule.Why != why {
					t.Errorf("touched = %v by %q, want %q", touched, rule.Why, why)
				}
			})
		}
	}
}

// A rule that looks into a set of ipset counts in it. Where another rule compares these
// counters, whatever packets that one judges, no packet may be missing; and only there.
func TestXTSetCounters(t *testing.T) {
	const compares = "-m conntrack --ctstate NEW -m set --match-set seen src ! --update-counters --packets-gt 100 -j DROP"
	for name, c := range map[string]struct{ before, added, why string }{
		"none compares":     {"-m set --match-set seen src -j ACCEPT", "-p tcp --dport 80 -j DROP", ""},
		"compared before":   {compares, "-m set --match-set seen src -j ACCEPT", setCounters},
		"compared after":    {"-m set --match-set seen src -j ACCEPT", compares, setCounters},
		"does not count":    {"-m set --match-set seen src ! --update-counters -j ACCEPT", compares, ""},
		"counts for others": {"-p tcp --dport 80 -m set --match-set seen src -j ACCEPT", compares, ""},
		"and then judges":   {"-m set --match-set seen src -p tcp --dport 80 -j ACCEPT", compares, setCounters},
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+name, func(t *testing.T) {
				ns := nstest.New(t)
				nstest.Run(t, ns, "ipset create seen hash:ip counters")
				load(t, ns, tool, filterTable("-A FORWARD "+c.before))
				live := follow(t, ns, Options{})
				load(t, ns, tool, filterTable("-A FORWARD "+c.before+"\n-A FORWARD "+c.added))
				live.follow()
				for how, r := range map[string]Ruleset{"read": readIn(t, ns, Options{}), "followed": live.Ruleset} {
					if rule, touched := r.Touches(outbound(tcp, "443")); touched != (c.why != "") || rule.Why != c.why {
						t.Errorf("%s: touched = %v by %q, want %q", how, touched, rule.Why, c.why)
					}
				}
			})
		}
	}
}

// TestXTBPF holds that a program that may count packets needs each that it sees, and one in
// the rule itself only those that the rule judges by it.
func TestXTBPF(t *testing.T) {
	const inRule, pinned = 0, 1
	info := make([]byte, 528)
	for mode, needs := range map[uint16]bool{inRule: false, pinned: true} {
		binary.NativeEndian.PutUint16(info, mode)
		if s := xtMatch("bpf", 1, info); (s.check == nil) != needs {
			t.Errorf("mode %d: needs every packet: %v", mode, s.check == nil)
		}
	}
	if s := xtMatch("bpf", 0, info); s.check == nil {
		t.Error("revision 0 needs every packet")
	}
}

// TestXTWays holds that chains and tables of both kinds are followed.
func TestXTWays(t *testing.T) {
	conn := outbound(tcp, "443")
	for _, c := range []touchCase{
		{"policy", filterTable(""), conn, ""},
		{"jump", filterTable("-A LOGGING -j LOG\n-A FORWARD -p tcp --dport 443 -j LOGGING"), conn, "LOG"},
		{"jump for others", filterTable("-A LOGGING -j LOG\n-A FORWARD -p tcp --dport 80 -j LOGGING"), conn, ""},
		{"accepted in a chain", filterTable("-A OK -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -j OK\n-A FORWARD -j LOG"), conn, ""},
		{"return", filterTable("-A OK -m conntrack --ctstate ESTABLISHED -j RETURN\n-A OK -j LOG\n-A FORWARD -j OK"), conn, ""},
		{"goto", filterTable("-A OK -m conntrack --ctstate ESTABLISHED -j RETURN\n-A FORWARD -g OK\n-A FORWARD -j LOG"), conn, ""},
		{"after a jump", filterTable("-A OK -p tcp --dport 80 -j ACCEPT\n-A FORWARD -j OK\n-A FORWARD -j LOG"), conn, "LOG"},
		{"rejected before", filterTable("-A FORWARD -j REJECT\n-A FORWARD -j LOG"), conn, ""},
		{"no target", filterTable("-A FORWARD -m limit"), conn, "limit"},
		{"input", filterTable("-A INPUT -j LOG"), conn, ""},
		{"output", filterTable("-A OUTPUT -j LOG"), conn, ""},
		{"nat", "*nat\n-A POSTROUTING -m statistic --mode random --probability 0.5 -j MASQUERADE\nCOMMIT\n", conn, ""},
		{"mangle", "*mangle\n-A PREROUTING -m length --length 1000: -j MARK --set-mark 7\nCOMMIT\n", conn, "length"},
		{"ttl", "*mangle\n-A PREROUTING -j TTL --ttl-set 64\nCOMMIT\n", conn, "TTL"},
		{"DSCP", "*mangle\n-A POSTROUTING -j DSCP --set-dscp-class cs1\nCOMMIT\n", conn, ""},
		{"TOS", "*mangle\n-A POSTROUTING -j TOS --set-tos 0x10/0x3c\nCOMMIT\n", conn, ""},
		{"TOS and ECN", "*mangle\n-A POSTROUTING -j TOS --set-tos 0x03/0xff\nCOMMIT\n", conn, "TOS"},
		{"raw", "*raw\n-A PREROUTING -p tcp --dport 80 -j TRACE\nCOMMIT\n", conn, ""},
		{"notrack", "*raw\n-A PREROUTING -p tcp --dport 443 -j CT --notrack\nCOMMIT\n", conn, ""},
		{"raw before translation", "*raw\n-A PREROUTING -p tcp --dport 8080 -m length --length 1000: -j DROP\nCOMMIT\n", published(tcp, "80"), "length"},
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+c.name, func(t *testing.T) { c.run(t, Options{}, tool) })
		}
	}
}

// What conntrack does not know may be in a zone, if rules make zones.
func TestZones(t *testing.T) {
	seen := outbound(udp, "53")
	unseen := Conn{Conn: conntrack.Conn{Orig: seen.Orig, Reply: seen.Orig.Reverse()}, Untracked: true}
	for _, c := range []touchCase{
		{"zone", "*raw\n-A PREROUTING -p udp -j CT --zone 5\nCOMMIT\n", unseen, "ct zone"},
		{"zone of one direction", "*raw\n-A PREROUTING -p udp -j CT --zone-orig 5\nCOMMIT\n", unseen, "ct zone"},
		{"zone of others", "*raw\n-A PREROUTING -p tcp -j CT --zone 5\nCOMMIT\n", unseen, ""},
		{"not tracked", "*raw\n-A PREROUTING -p udp -j CT --notrack\nCOMMIT\n", unseen, ""},
		{"of one that is known", "*raw\n-A PREROUTING -p udp -j CT --zone 5\nCOMMIT\n", seen, ""},
	} {
		for kind, tool := range iptables {
			t.Run(kind+" "+c.name, func(t *testing.T) { c.run(t, Options{}, tool) })
		}
	}
	t.Run("nft", func(t *testing.T) {
		touchCase{rules: "table ip t {\nchain p { type filter hook prerouting priority -300; ct zone set 5; }\n}\n", conn: unseen, why: "ct zone"}.run(t, Options{}, nft)
	})
}

func TestLegacyText(t *testing.T) {
	all := read(t, Options{}, xtLegacy, filterTable(
		"-A FORWARD -j ACCEPT -s 10.0.0.0/8\n-A FORWARD ! -i docker0 -d 172.17.0.0/16 -p tcp --dport 80 -m conntrack --ctstate RELATED,ESTABLISHED -m limit -j LOG")).PerPacket()
	if len(all) != 1 {
		t.Fatalf("%d rules, want 1: %v", len(all), all)
	}
	const text = "-d 172.17.0.0/255.255.0.0 ! -i docker0 -p tcp -p tcp --dport 80 -m conntrack --ctstate ESTABLISHED,RELATED -m limit -j LOG"
	if all[0].Text != text || all[0].String() != "iptables-legacy filter FORWARD handle 2 (limit)" {
		t.Errorf("got %q, %q", all[0].Text, all[0])
	}
}
