package rules

import (
	"fmt"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// marked is a connection with a mark.
func marked(c Conn, mark uint32) Conn {
	c.Mark = mark
	return c
}

// TestMarksSettle holds that a connection is kept regular while its packets change its mark, and
// is not once they leave it as it is.
func TestMarksSettle(t *testing.T) {
	const steps = "ct mark 0 ct mark set 1 accept; ct mark 1 ct mark set 2 accept; ct mark 2 drop;"
	const out, in = "iifname docker0", "iifname eth0"
	for _, c := range []struct {
		rules   string // of forward, or of the chains before it
		mark    uint32
		touched bool
	}{
		{steps, 0, true},
		{steps, 1, true},
		{steps, 2, false},
		{steps, 3, false},
		{"ct mark 0 ct mark set 1; ct mark 5 drop;", 1, false},
		{"ct mark 0 ct mark set 1; ct mark 5 drop;", 0, true},
		{"tcp dport 443 ct mark 0 ct mark set 1; ct mark 5 drop;", 1, false},
		{"tcp dport 80 ct mark 0 ct mark set 1; ct mark 5 drop;", 0, false},
		{"ct state new ct mark set 1; ct mark 5 drop;", 0, false},
		{"ct mark 1 ct mark set 2;", 1, true},
		{"fib daddr type local ct mark set ct mark ^ 1;", 1, true},
		{"ct mark set 1; tcp dport 443 ct mark set 2; ct mark 2 accept;", 2, true}, // of the replies 1
		{"ct mark set 1; ip daddr != 1.1.1.1 ct mark set 2; ct mark 2 accept;", 2, false},
		{out + " ct mark set 1; " + in + " ct mark set 2; ct mark 2 drop;", 1, true},
		{out + " ct mark set 1; ct mark 2 drop;", 1, false},
		{"ct mark set 7;", 7, false},
		{"ct mark set ct mark ^ 1;", 1, true},
		{"meta mark set ct mark ^ 1; ct mark set meta mark;", 1, true},
		{"meta mark set ct mark; meta mark set meta mark << 1; ct mark set meta mark;", 1, true},
		{"ct mark set ct mark | 1;", 3, false},
		{"ct mark set ct mark & 1;", 1, false},
		{"ct mark set ct mark & 1;", 3, true},
		{"ct mark set ct mark map { 7 : 7, * : 8 };", 8, false},
		{"ct mark set ct mark map { 7 : 7, * : 8 };", 9, true},
		{"ct mark set ct mark map { 0 : 1, 1 : 2 };", 2, false},
		{"ct mark set ct mark map { 0 : 1, 1 : 2 };", 1, true},
		{"ct mark set tcp dport map { 443 : 1, 1 : 2 };", 1, false},
		{"ct mark set ct mark map @steps;", 2, true},
		{"ct mark set ct mark map @steps;", 3, false},
		{"ct mark set jhash ct mark mod 8;", 1, true},
		{"ct mark set meta mark;", 0, true}, // not known
		{"ct mark & 0xff 1 ct mark set ct mark & 0xffffff00 | 2; ct mark & 0xff 2 drop;", 0x501, true},
		{"ct mark & 0xff 1 ct mark set ct mark & 0xffffff00 | 2; ct mark & 0xff 2 drop;", 0x502, false},
		{"ct mark { 1, 3 } ct mark set 9; ct mark 9 drop;", 3, true},
		{"ct mark { 1, 3 } ct mark set 9; ct mark 9 drop;", 9, false},
		{"ct mark vmap { 1 : jump up, 2 : drop };", 1, true},
		{"ct mark vmap { 1 : jump up, 2 : drop };", 3, false},
		{"ct mark 1 jump up; ct mark 2 drop;", 1, true},
		{"ct mark 1 fib daddr type unicast ct mark set 2; ct mark 2 drop;", 1, true},
		{"fib daddr type local ct mark set 2; ct mark 2 accept;", 0, false}, // it would have been set
		{"fib daddr type local ct mark set 2; ct mark 2 accept;", 2, false},
		{"fib daddr type local ct mark set 2; fib saddr type local ct mark set 2; ct mark 2 accept;", 0, false},
		// Where packets take a mark back, it need not have been set.
		{"fib daddr type local ct mark set 2; fib saddr type local ct mark set 1; ct mark 2 accept;", 1, true},
		{"fib daddr type local drop; " + out + " ct mark set 1; " + in + " ct mark set 2; ct mark 2 drop;", 1, true},
		{"fib daddr type local drop; " + out + " ct mark set 1; " + in + " ct mark 1 ct mark set 2;", 2, true},
		{"fib daddr type local drop; " + out + " ct mark set 1; " + in + " ct mark 1 ct mark set 1;", 2, false},
		{"fib daddr type local ct mark set 1; }\nchain o { type filter hook postrouting priority 0; ct mark set 2;", 2, true},
		{"meta mark 5 ct mark set 2; ct mark 2 drop;", 0, true}, // not known
		{"meta mark set ct mark; meta mark 1 meta mark set 2; ct mark set meta mark; meta mark 2 drop;", 1, true},
		{"meta mark set ct mark; meta mark 0 meta mark set 1; ct mark set meta mark;", 1, false},
		{"}\nchain p { type filter hook prerouting priority mangle; meta mark set ct mark; meta mark 1 meta mark set 2;" +
			"}\nchain o { type filter hook postrouting priority mangle; ct mark set meta mark;", 1, true},
		{"}\nchain p { type filter hook prerouting priority mangle; meta mark set ct mark; meta mark 0 meta mark set 2;" +
			"}\nchain o { type filter hook postrouting priority mangle; meta mark 2 ct mark set meta mark;", 2, false},
		{"}\nchain p { type filter hook prerouting priority raw; ct mark 1 ct mark set 2;", 1, false}, // before conntrack
		{"}\nchain n { type nat hook postrouting priority 100; ct mark 1 ct mark set 2;", 1, false},
	} {
		t.Run(fmt.Sprint(c.rules, c.mark), func(t *testing.T) {
			k := touchCase{
				rules: "table inet t {\nmap steps { type mark : mark; elements = { 1 : 2, 2 : 3 }; }\nchain up { ct mark set 2; }\nchain f { type filter hook forward priority 0; " + c.rules + " }\n}",
				conn:  marked(outbound(tcp, "443"), c.mark),
			}
			if c.touched {
				k.why = "ct mark"
			}
			k.run(t, Options{}, nft)
		})
	}
}

// TestYoungMarks holds that programs compose no connections to which rules may give marks that
// matter.
func TestYoungMarks(t *testing.T) {
	young := Conn{Flags: FIN}
	young.Orig.Proto, young.Reply.Proto = tcp, tcp
	for rules, why := range map[string]string{
		"ct mark 1 ct mark set 2; ct mark 2 drop;":                  "ct mark",
		"fib daddr type local ct mark set 2; ct mark 2 drop;":       "ct mark",
		"ct state new ct mark set 2; ct mark 2 drop;":               "",
		"meta l4proto udp ct mark 1 ct mark set 2; ct mark 2 drop;": "",
		"ct mark set 2;":  "ct mark",
		"ct mark 2 drop;": "",
	} {
		t.Run(rules, func(t *testing.T) {
			touchCase{rules: forwardChain(rules), conn: young, why: why}.run(t, Options{}, nft)
		})
	}
}

// TestXTMarksSettle is TestMarksSettle for iptables of both kinds.
func TestXTMarksSettle(t *testing.T) {
	const (
		steps = "-A FORWARD -m connmark --mark 0 -j CONNMARK --set-mark 1\n" +
			"-A FORWARD -m connmark --mark 1 -j CONNMARK --set-mark 2\n-A FORWARD -m connmark --mark 2 -j DROP"
		restore = "-A PREROUTING -j CONNMARK --restore-mark\n-A PREROUTING -m mark ! --mark 0 -j ACCEPT\n" +
			"-A PREROUTING -j MARK --set-mark 1\n-A PREROUTING -j CONNMARK --save-mark"
		wgQuick = "-A PREROUTING -p tcp -j CONNMARK --restore-mark\n-A POSTROUTING -m mark --mark 51820 -p tcp -j CONNMARK --save-mark"
		aws     = "-A PREROUTING -i eth0 -m addrtype --dst-type LOCAL -j CONNMARK --set-xmark 0x80/0x80\n" +
			"-A PREROUTING -i docker0 -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80"
		cycle = "-A PREROUTING -j CONNMARK --restore-mark\n-A PREROUTING -m mark --mark 1 -j MARK --set-mark 2\n" +
			"-A POSTROUTING -j CONNMARK --save-mark"
	)
	for _, c := range []struct {
		table, rules string
		mark         uint32
		touched      bool
	}{
		{"mangle", steps, 1, true},
		{"mangle", steps, 2, false},
		{"mangle", restore, 1, false},
		{"mangle", restore, 2, false},
		{"mangle", restore, 0, true},
		{"mangle", wgQuick, 0, false},
		{"mangle", wgQuick, 51820, false},
		{"mangle", aws, 0, false},
		{"mangle", aws, 0x80, false},
		{"mangle", cycle, 1, true},
		{"mangle", cycle, 2, false},
		{"mangle", "-A FORWARD -j CONNMARK --xor-mark 1", 1, true},
		{"mangle", "-A FORWARD -m addrtype --dst-type LOCAL -j CONNMARK --xor-mark 1", 1, true},
		{"mangle", "-A FORWARD -j CONNMARK --left-shift-mark 1 --save-mark --nfmask 0x1 --ctmask 0x1", 1, true},
		{"mangle", "-A FORWARD -j CONNMARK --save-mark", 1, true}, // not known
		{"mangle", "-A FORWARD -j CONNMARK --save-mark --nfmask 0 --ctmask 0", 1, false},
		{"mangle", "-A FORWARD -j CONNMARK --set-mark 7/0xff", 0x107, false},
		{"mangle", "-A FORWARD -j CONNMARK --set-mark 7/0xff", 0x108, true},
		{"mangle", "-A FORWARD -j CONNMARK --or-mark 1", 5, false},
		{"mangle", "-A FORWARD -j CONNMARK --or-mark 1", 4, true},
		{"mangle", "-A FORWARD -j CONNMARK --and-mark 1", 4, true},
		{"mangle", "-A PREROUTING -j CONNMARK --restore-mark\n-A PREROUTING -j MARK --xor-mark 1\n-A PREROUTING -j CONNMARK --save-mark", 1, true},
		{"mangle", "-A PREROUTING -j HMARK --hmark-tuple src --hmark-mod 2 --hmark-rnd 1\n-A PREROUTING -m mark --mark 1 -j CONNMARK --set-mark 1", 0, true},
	} {
		for kind, tool := range iptables {
			t.Run(fmt.Sprint(kind, " ", c.rules, c.mark), func(t *testing.T) {
				k := touchCase{
					rules: "*" + c.table + "\n:PREROUTING ACCEPT\n:FORWARD ACCEPT\n:POSTROUTING ACCEPT\n" + c.rules + "\nCOMMIT\n",
					conn:  marked(outbound(tcp, "443"), c.mark),
				}
				if c.touched {
					k.why = "ct mark"
				}
				k.run(t, Options{}, tool)
			})
		}
	}
}

// TestLiveMarksSettle holds that Live keeps the rules that set marks, in whatever order they come.
func TestLiveMarksSettle(t *testing.T) {
	l := follow(t, nstest.New(t), Options{})
	for _, c := range []struct {
		add     string
		touched bool
	}{
		{"add table ip t; add chain ip t p { type filter hook prerouting priority mangle; }; add rule ip t p meta mark set 1", false},
		{"add chain ip t o { type filter hook postrouting priority mangle; }; add rule ip t o meta mark 1 ct mark set 2", true},
		{"flush chain ip t p; add rule ip t p meta mark set 2", false},
		{"flush chain ip t p", true}, // the packet's mark is not known
		{"flush chain ip t o", false},
		{"add chain ip t i { type filter hook input priority 0; }; add rule ip t i udp dport 8472 ct mark 1 ct mark set 2", false},
	} {
		if !l.sh(nftScript(c.add)) {
			t.Fatalf("%s: refused", c.add)
		}
		l.follow()
		if rule, touched := l.Touches(marked(outbound(tcp, "443"), 0)); touched != c.touched {
			t.Errorf("touched = %v by %v after %q", touched, rule, c.add)
		}
	}
	if rule, touched := l.TouchesTunnel(Tunnel{udp, 8472}); !touched {
		t.Errorf("the tunnel's packets are touched by %v", rule)
	}
}
