package rules

import (
	"slices"
	"strings"
	"testing"
)

// TestExactCounters holds that connections stay regular that counters count
// which were named, by their own name or by a comment, and no others.
func TestExactCounters(t *testing.T) {
	const table = `table inet t {
		counter web { }
		counter other { }
		map counters { type inet_service : counter; elements = { 443 : "web" }; }
		chain billed { comment "of a chain"; counter; }
		chain f { type filter hook forward priority 0;
			RULE
		}
	}`
	xt := func(rule string) string { return filterTable("-A FORWARD " + rule) }
	for _, c := range []struct {
		name  string
		tool  string
		rule  string
		exact []string
		why   string
	}{
		{"none named", nft, "counter name web", nil, ""},
		{"named", nft, "counter name web", []string{"web"}, "exact counter web"},
		{"another named", nft, "counter name other", []string{"web"}, ""},
		{"of other connections", nft, "tcp dport 80 counter name web", []string{"web"}, ""},
		{"of new connections", nft, "ct state new counter name web", []string{"web"}, ""},
		{"behind established", nft, "ct state established accept\ncounter name web", []string{"web"}, ""},
		{"comment", nft, `tcp dport 443 counter accept comment "billing"`, []string{"billing"}, "exact counter billing"},
		{"another comment", nft, `counter accept comment "billing"`, []string{"bill"}, ""},
		{"comment without a counter", nft, `tcp dport 443 accept comment "billing"`, []string{"billing"}, ""},
		{"comment of a chain", nft, "jump billed", []string{"of a chain"}, "exact counter of a chain"},
		{"in a map", nft, "counter name tcp dport map @counters", []string{"web"}, "exact counter in @counters"},
		{"not in a map", nft, "counter name udp dport map @counters", []string{"web"}, ""},
		{"iptables-nft", xtNFT, "-p tcp -m comment --comment billing -j ACCEPT", []string{"billing"}, "exact counter billing"},
		{"iptables-legacy", xtLegacy, "-p tcp -m comment --comment billing -j ACCEPT", []string{"billing"}, "exact counter billing"},
		{"iptables-legacy, others", xtLegacy, "-p udp -m comment --comment billing -j ACCEPT", []string{"billing"}, ""},
		{"iptables-legacy, another comment", xtLegacy, "-m comment --comment billing -j ACCEPT", []string{"other"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules := xt(c.rule)
			if c.tool == nft {
				rules = strings.Replace(table, "RULE", c.rule, 1)
			}
			touchCase{rules: rules, conn: outbound(tcp, "443"), why: c.why}.run(t, Options{ExactCounters: c.exact}, c.tool)
		})
	}
}

// TestExactCounterKeepsFromDiscarding holds that what is dropped is counted.
func TestExactCounterKeepsFromDiscarding(t *testing.T) {
	const rules = "*filter\n-A FORWARD -m comment --comment attacks -j DROP\nCOMMIT\n"
	for why, exact := range map[string][]string{"drop": nil, "exact counter attacks": {"attacks"}} {
		r := read(t, Options{Drops: true, ExactCounters: exact}, xtLegacy, rules)
		if by, ok := r.Discardable(sent(tcp, "443")); ok != (exact == nil) || by.Why != why {
			t.Errorf("discardable = %v by %q, want %q", ok, by.Why, why)
		}
	}
}

// TestMissingCounters holds that a name is known that no counter has.
func TestMissingCounters(t *testing.T) {
	rules := "table inet t {\ncounter unused { }\ncounter web { }\nmap m { type inet_service : counter; elements = { 443 : \"web\" }; }\n" +
		"chain f { type filter hook forward priority 0; counter name tcp dport map @m; counter accept comment \"billing\"; }\n}"
	r := read(t, Options{ExactCounters: []string{"billing", "unused", "web", "none"}}, nft, rules)
	if got, want := r.MissingCounters(), []string{"unused", "none"}; !slices.Equal(got, want) {
		t.Errorf("missing %q, want %q", got, want)
	}
}
