package rules

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// over6 is the same connection over IPv6: 2001:db8::172.17.0.2 and the like.
func over6(c Conn) Conn {
	for _, end := range []*netip.AddrPort{&c.Orig.Src, &c.Orig.Dst, &c.Reply.Src, &c.Reply.Dst} {
		b := netip.MustParseAddr("2001:db8::").As16()
		copy(b[12:], end.Addr().AsSlice())
		*end = netip.AddrPortFrom(netip.AddrFrom16(b), end.Port())
	}
	return c
}

const (
	container6 = "2001:db8::ac11:2"
	far6       = "2001:db8::c633:6407"
)

// ip6tables are iptables' two kinds for IPv6.
var ip6tables = map[string]string{"iptables-nft": "ip6tables-nft-restore", "iptables-legacy": "ip6tables-legacy-restore"}

// TestFamilies holds that rules of one family touch connections of that one
// only, and those of both touch both.
func TestFamilies(t *testing.T) {
	rule := "chain f {\ntype filter hook forward priority 0; policy accept;\nlimit rate 10/second accept\n}\n}\n"
	for family, touches := range map[string][2]string{
		"ip": {"limit", ""}, "ip6": {"", "limit"}, "inet": {"limit", "limit"}, "bridge": {"limit", "limit"},
	} {
		text := "table " + family + " t {\n" + rule
		if family == "bridge" {
			text = "table bridge t {\nchain f {\ntype filter hook output priority 0; policy accept;\nlimit rate 10/second accept\n}\n}\n"
		}
		ruleset := read(t, Options{}, nft, text)
		for i, conn := range []Conn{outbound(tcp, "443"), over6(outbound(tcp, "443"))} {
			if rule, _ := ruleset.Touches(conn); rule.Why != touches[i] {
				t.Errorf("%s: IPv%d is touched by %q, want %q", family, []int{4, 6}[i], rule.Why, touches[i])
			}
		}
	}
}

// TestNFTOverIPv6 follows conditions of nftables on packets of IPv6.
func TestNFTOverIPv6(t *testing.T) {
	v6 := over6(outbound(tcp, "443"))
	for _, c := range []touchCase{
		{"source", "ip6 saddr " + container6 + " log", v6, "log"},
		{"another source", "ip6 saddr 2001:db8::1 log", v6, ""},
		{"network", "ip6 daddr 2001:db8::/64 log", v6, "log"},
		{"another network", "ip6 daddr 2001:db9::/64 log", v6, ""},
		{"IPv4 address", "ip daddr " + remote + " log", v6, ""},
		{"IPv6 address, IPv4", "ip6 daddr " + far6 + " log", outbound(tcp, "443"), ""},
		{"set", "ip6 daddr { " + far6 + ", 2001:db8::5 } log", v6, "log"},
		{"family", "meta nfproto ipv6 log", v6, "log"},
		{"the other family", "meta nfproto ipv4 log", v6, ""},
		{"conntrack's source", "ct original ip6 saddr " + container6 + " log", v6, "log"},
		{"another source in conntrack", "ct original ip6 saddr 2001:db8::1 log", v6, ""},
		{"conntrack's family", "ct original l3proto ipv4 log", v6, ""},
		{"protocol", "meta l4proto tcp log", v6, "log"},
		{"next header", "ip6 nexthdr udp log", v6, ""},
		{"port", "tcp dport 443 log", v6, "log"},
		{"another port", "tcp dport 80 log", v6, ""},
		{"ICMP", "icmpv6 type echo-request log", v6, ""},
		{"hop limit", "ip6 hoplimit < 5 drop", v6, "ip6 hoplimit"},
		{"length", "ip6 length > 1000 drop", v6, "ip6 length"},
		{"flow label", "ip6 flowlabel 7 drop", v6, "payload @nh,8,24"},
		{"DSCP", "ip6 dscp cs1 meta mark set 1", v6, ""},
		{"ECN", "ip6 ecn ce drop", v6, "payload @nh,8,8"},
		{"DSCP set", "ip6 dscp set cs1", v6, ""},
		{"ECN set", "ip6 ecn set ce", v6, "ip ecn set"},
		{"hop limit set", "ip6 hoplimit set 64", v6, "ip6 hoplimit set"},
		{"extension header", "exthdr hbh exists log", v6, ""},
		{"fragment", "frag id 7 log", v6, ""},
		{"established", "ct state established accept\nlog", v6, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.rules = forwardChain(c.rules)
			c.run(t, Options{}, nft)
		})
	}
}

// TestIP6Tables follows iptables' rules on packets of IPv6.
func TestIP6Tables(t *testing.T) {
	v6 := over6(outbound(tcp, "443"))
	for kind, tool := range ip6tables {
		for _, c := range []touchCase{
			{"source", "-A FORWARD -s " + container6 + " -j LOG", v6, "LOG"},
			{"not that source", "-A FORWARD ! -s " + container6 + " ! -d " + container6 + " -j LOG", v6, ""},
			{"network", "-A FORWARD -d 2001:db8::/64 -p tcp --dport 443 -m limit -j ACCEPT", v6, "limit"},
			{"another network", "-A FORWARD -d 2001:db8:1::/64 -m limit -j ACCEPT", v6, ""},
			{"device", "-A FORWARD -i docker0 -o eth+ -m limit -j ACCEPT", v6, "limit"},
			{"another device", "-A FORWARD -i docker1 -m limit -j ACCEPT", v6, ""},
			{"protocol", "-A FORWARD -p udp -j LOG", v6, ""},
			{"chain", "-A FORWARD -p tcp -g X\n-A X -m hashlimit --hashlimit-upto 5/sec --hashlimit-name x -j ACCEPT", v6, "hashlimit"},
			{"state", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -j LOG", v6, ""},
			{"conntrack's address", "-A FORWARD -m conntrack --ctorigsrc " + container6 + " -j LOG", v6, "LOG"},
			{"conntrack's other address", "-A FORWARD -m conntrack --ctorigsrc 2001:db8::1 -j LOG", v6, ""},
			{"range", "-A FORWARD -m iprange --src-range 2001:db8::-2001:db8::ffff:ffff -j LOG", v6, "LOG"},
			{"another range", "-A FORWARD -m iprange --src-range 2001:db8:1::-2001:db8:1::ffff -j LOG", v6, ""},
			{"hop limit", "-A FORWARD -m hl --hl-lt 5 -j DROP", v6, "hl"},
			{"routing header", "-A FORWARD -m rt --rt-type 0 -j LOG", v6, ""},
			{"IPv4", "-A FORWARD -m limit -j ACCEPT", outbound(tcp, "443"), ""},
		} {
			t.Run(kind+" "+c.name, func(t *testing.T) {
				c.rules = filterTable(c.rules)
				c.run(t, Options{}, tool)
			})
		}
	}
}

// TestIP6TablesStale holds that a change of ip6tables-legacy is seen.
func TestIP6TablesStale(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, "ip6tables-legacy -A FORWARD -p tcp -j ACCEPT")
	ruleset := readIn(t, ns, Options{})
	nstest.Do(t, ns, func() {
		if stale, err := ruleset.Stale(); stale || err != nil {
			t.Errorf("before a change: %v, %v", stale, err)
		}
		nstest.Run(t, ns, "ip6tables-legacy -A FORWARD -m limit -j ACCEPT")
		if stale, err := ruleset.Stale(); !stale || err != nil {
			t.Errorf("after a change: %v, %v", stale, err)
		}
	})
}

// TestDiscardableOverIPv6 holds that what ip6tables drops is known, and that
// iptables' drops are not taken for it.
func TestDiscardableOverIPv6(t *testing.T) {
	flow := sent(tcp, "443")
	flow.Tuple = over6(outbound(tcp, "443")).Orig
	for tool, want := range map[string]bool{"ip6tables-nft-restore": true, "ip6tables-legacy-restore": true, "iptables-nft-restore": false} {
		ruleset := read(t, Options{Drops: true}, tool, filterTable("-A FORWARD -p tcp --dport 443 -j DROP"))
		if _, ok := ruleset.Discardable(flow); ok != want {
			t.Errorf("%s: discardable = %v", tool, ok)
		}
	}
}
