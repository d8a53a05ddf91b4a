package rules

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// TestTouchesTunnel holds which rules a tunnel's own packets may meet, out of
// this machine and into it.
func TestTouchesTunnel(t *testing.T) {
	chain := func(hook, rule string) string {
		return "table inet t {\nchain c { type filter hook " + hook + " priority 0; " + rule + "; }\n}"
	}
	for _, c := range []struct {
		name, tool, rules, why, ipip string
	}{
		{"out", nft, chain("output", "udp dport 8472 limit rate 10/second accept"), "limit", ""},
		{"in", nft, chain("input", "limit rate 10/second accept"), "limit", "limit"},
		{"behind a verdict", nft, chain("input", "udp dport 8472 accept; limit rate 10/second accept"), "", "limit"},
		{"in, early", nft, chain("prerouting", "ip saddr 10.77.0.2 log"), "log", "log"},
		{"out, late", nft, chain("postrouting", "meta length 100-200 drop"), "meta length", "meta length"},
		{"another port", nft, chain("output", "udp dport 4789 limit rate 10/second accept"), "", ""},
		{"another protocol", nft, chain("input", "tcp dport 22 limit rate 10/second accept"), "", ""},
		{"of IPv6", nft, chain("input", "meta nfproto ipv6 limit rate 10/second accept"), "", ""},
		{"forwarded", nft, chain("forward", "limit rate 10/second accept"), "", ""},
		{"of IPIP", nft, chain("input", "meta l4proto 4 limit rate 10/second accept"), "", "limit"},
		{"by bytes behind IP", nft, chain("input", "@th,107,1 0 limit rate 10/second accept"), "limit", "limit"},
		{"marks", nft, chain("output", "udp dport 8472 ct mark 1 ct mark set 2"), "ct mark", ""},
		{"marks of packets", nft, chain("output", "meta mark set 2"), "", ""},
		{"iptables, out", xtLegacy, filterTable("-A OUTPUT -p udp --dport 8472 -m limit --limit 10/s -j ACCEPT"), "limit", ""},
		{"iptables, in", xtNFT, filterTable("-A INPUT -p udp -m limit --limit 10/s -j ACCEPT"), "limit", ""},
		{"iptables, new", xtNFT, filterTable("-A INPUT -m conntrack --ctstate NEW -m limit --limit 10/s -j ACCEPT"), "limit", "limit"},
		{"iptables, another port", xtLegacy, filterTable("-A INPUT -p udp --dport 53 -m limit --limit 10/s -j ACCEPT"), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := nstest.New(t)
			load(t, ns, c.tool, c.rules)
			read := readIn(t, ns, Options{})
			for tunnel, why := range map[Tunnel]string{{unix.IPPROTO_UDP, 8472}: c.why, {Proto: unix.IPPROTO_IPIP}: c.ipip} {
				if rule, touched := read.TouchesTunnel(tunnel); rule.Why != why || touched != (why != "") {
					t.Errorf("%v: touched %v, by %q (%v), want %q", tunnel, touched, rule.Why, rule, why)
				}
			}
		})
	}
}
