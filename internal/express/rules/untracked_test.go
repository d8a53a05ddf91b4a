package rules

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// rawTable is a chain that sees packets before conntrack does.
func rawTable(rules string) string {
	return "table inet t {\nchain other { }\nchain p {\ntype filter hook prerouting priority -300;\n" + rules + "\n}\n}\n"
}

// Conntrack is known to see no packet of a connection only if all of them, in both
// directions, reach a notrack rule, whatever else they are.
func TestUntracked(t *testing.T) {
	here := outbound(udp, "53")
	here.Reply, here.Status = here.Orig.Reverse(), 0
	for name, c := range map[string]struct {
		tool, rules string
		want        bool
	}{
		"all":                  {nft, rawTable("notrack"), true},
		"both directions":      {nft, rawTable("udp dport 53 notrack; udp sport 53 notrack"), true},
		"one direction":        {nft, rawTable("udp dport 53 notrack"), false},
		"another connection":   {nft, rawTable("tcp dport 53 notrack; tcp sport 53 notrack"), false},
		"some packets":         {nft, rawTable("ip length > 100 notrack"), false},
		"not known":            {nft, rawTable("meta mark 7 notrack"), false},
		"some leave before":    {nft, rawTable("meta mark 7 accept; notrack"), false},
		"all leave before":     {nft, rawTable("accept; notrack"), false},
		"some return before":   {nft, "table inet t {\nchain q { meta mark 7 return; notrack; }\nchain p {\ntype filter hook prerouting priority -300;\njump q; }\n}\n", false},
		"behind a return":      {nft, "table inet t {\nchain q { meta mark 7 return; }\nchain p {\ntype filter hook prerouting priority -300;\njump q; notrack; }\n}\n", true},
		"in a chain":           {nft, "table inet t {\nchain q { notrack; }\nchain p {\ntype filter hook prerouting priority -300;\nudp dport 53 jump q; udp sport 53 goto q; }\n}\n", true},
		"in a chain for some":  {nft, "table inet t {\nchain q { notrack; }\nchain p {\ntype filter hook prerouting priority -300;\nmeta mark 7 jump q; }\n}\n", false},
		"behind conntrack":     {nft, "table inet t {\nchain p {\ntype filter hook prerouting priority -150;\nnotrack; }\n}\n", false},
		"beside conntrack":     {nft, "table inet t {\nchain p {\ntype filter hook prerouting priority -200;\nnotrack; }\n}\n", false},
		"by device":            {nft, rawTable("iif 5 notrack; iif 2 notrack"), true},
		"by one device":        {nft, rawTable("iif 5 notrack"), false},
		"IPv6 only":            {nft, "table ip6 t {\nchain p {\ntype filter hook prerouting priority -300;\nnotrack; }\n}\n", true}, // nothing is there for IPv4
		"no notrack":           {nft, rawTable("accept"), false},
		"no rules":             {nft, "", true},
		"iptables":             {xtNFT, "*raw\n-A PREROUTING -p udp -j CT --notrack\nCOMMIT\n", true},
		"iptables' NOTRACK":    {xtLegacy, "*raw\n-A PREROUTING -p udp -j NOTRACK\nCOMMIT\n", true},
		"iptables' zones":      {xtNFT, "*raw\n-A PREROUTING -p udp -j CT --zone 5\nCOMMIT\n", false},
		"legacy, table of nat": {xtLegacy, "*nat\nCOMMIT\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(t, Options{}, c.tool, c.rules).Untracked(here); got != c.want {
				t.Errorf("untracked: %v, want %v", got, c.want)
			}
		})
	}
}

// Where the kernel lists its hooks, these decide, not that there are rules.
func TestUntrackedByHooks(t *testing.T) {
	here := outbound(udp, "53")
	for _, c := range []struct {
		tracked uint8
		want    bool
	}{{unix.NFPROTO_IPV4, false}, {unix.NFPROTO_IPV6, true}} {
		opts := Options{Tracked: map[uint8]bool{c.tracked: true}}
		if got := read(t, opts, nft, rawTable("accept")).Untracked(here); got != c.want {
			t.Errorf("tracked %v: untracked: %v, want %v", opts.Tracked, got, c.want)
		}
	}
}

// TestMayTrack holds after which changes conntrack may see packets that it did not see
// before: nobody is asked about the connections after the others.
func TestMayTrack(t *testing.T) {
	const forward = "table inet t { chain f { type filter hook forward priority 0; ip saddr 10.9.9.9 drop; }; }\n"
	const silence = "table inet t { chain q { udp dport 53 notrack; }; chain p { type filter hook prerouting priority -300; jump q; }; }\n"
	for _, c := range []struct {
		name, before, change string
		want                 bool
	}{
		{"a rule", forward, "add rule inet t f ip daddr 203.0.113.1 drop", false},
		{"the first rule that has conntrack track", forward, "table inet n { chain g { type nat hook postrouting priority 100; masquerade; }; }", true},
		{"another one", forward + "add rule inet t f ct state invalid drop\n", "table inet n { chain g { type nat hook postrouting priority 100; masquerade; }; }", false},
		{"the first one, by what elements have", forward + "add set inet t s { type ipv4_addr; size 100; flags dynamic; }\n", "add rule inet t f ip saddr 10.9.9.9 add @s { ip saddr ct count over 9 } drop", true},
		{"a family's first table", "table ip t { chain f { }; }", "add table ip6 u", true},
		{"a notrack rule that comes", forward, silence, true},
		{"a notrack rule that goes", silence, "flush chain inet t q", true},
		{"the jump to it", silence, "flush chain inet t p", true},
		{"its chain's hook", silence, "delete table inet t\n" + forward, true},
		{"a set beside it", silence + "table inet u { set s { type ipv4_addr; }; }", "add element inet u s { 10.0.0.1 }", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := follow(t, nstest.New(t), Options{})
			if !f.sh(nftScript(c.before)) {
				t.Fatal("refused")
			}
			f.follow()
			if !f.sh(nftScript(c.change)) {
				t.Fatal("refused")
			}
			if got := f.follow().MayTrack(); got != c.want {
				t.Errorf("may track: %v, want %v", got, c.want)
			}
		})
	}
}
