package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// TestConcerns holds which connections one transaction concerns: those that may meet
// another result.
func TestConcerns(t *testing.T) {
	const table = `
table inet t {
 set addresses { type ipv4_addr; elements = { 172.17.0.2, 10.0.1.2 }; }
 chain side { }
 chain f { type filter hook forward priority 0; ip saddr @addresses meta mark set 7; ip daddr 203.0.113.1 drop; }
}
`
	const inUse = `
table inet t {
 set addresses { type ipv4_addr; elements = { 172.17.0.2, 10.0.1.2 }; }
 chain f { type filter hook forward priority 0; ip saddr @addresses accept; ip daddr 203.0.113.1 limit rate 5/second drop; }
}
`
	var services, addresses strings.Builder
	for i := range 2 * manyElements {
		fmt.Fprintf(&services, "198.51.100.%d . tcp . 80 : goto side, ", i)
		fmt.Fprintf(&addresses, "10.7.0.%d, ", i)
	}
	many := `
table inet t {
 chain side { }
 chain drops { drop; }
 map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { ` + services.String() + ` }; }
 map ranges { type ipv4_addr . inet_proto . inet_service : verdict; flags interval; elements = { ` + services.String() + ` }; }
 set addresses { type ipv4_addr; elements = { ` + addresses.String() + ` }; }
 chain f { type filter hook forward priority 0; ip daddr . meta l4proto . th dport vmap @services; ip daddr . meta l4proto . th dport vmap @ranges; }
 chain g { type filter hook forward priority 5; ip daddr != 198.51.100.0/24 accept; ip saddr != @addresses accept; drop; }
}
`
	for _, c := range []struct {
		name, before, change string
		concerned            bool
	}{
		{"an element of a map about others, and a rule of a chain that it leads to", "table inet t { chain a { }; chain b { }; map m { type ipv4_addr : verdict; elements = { 172.17.0.2 : jump a }; }; chain f { type filter hook forward priority 0; ip saddr vmap @m; }; }", "add element inet t m { 10.9.9.9 : jump b }; add rule inet t a drop", true},
		{"an element of a set about others, and a rule of a chain that it leads to", "table inet t { chain a { }; set s { type ipv4_addr; elements = { 172.17.0.2 }; }; chain f { type filter hook forward priority 0; meta mark 1 ip saddr @s jump a; }; }", "add element inet t s { 10.9.9.9 }; add rule inet t a drop", true},
		{"the same about others", "table inet t { chain a { }; chain b { }; map m { type ipv4_addr : verdict; elements = { 172.17.0.2 : jump a }; }; chain f { type filter hook forward priority 0; ip saddr vmap @m; }; }", "add element inet t m { 10.9.9.9 : jump b }; add rule inet t b drop", false},
		{"an element of a large map, about others", many, "add element inet t services { 198.51.100.200 . tcp . 80 : goto drops }", false},
		{"an element of a large map, about its port and others", many, "add element inet t services { 198.51.100.200 . tcp . 443 : goto drops }", false},
		{"an element of a large map", many, "add element inet t services { 198.51.100.7 . tcp . 443 : goto drops }", true},
		{"an element of a large map with another verdict", strings.Replace(many, "198.51.100.7 . tcp . 80 : goto side", "198.51.100.7 . tcp . 443 : goto side", 1), "delete element inet t services { 198.51.100.7 . tcp . 443 }; add element inet t services { 198.51.100.7 . tcp . 443 : goto drops }", true},
		{"an element of a large map that comes back", strings.Replace(many, "198.51.100.7 . tcp . 80 : goto side", "198.51.100.7 . tcp . 443 : goto side", 1), "delete element inet t services { 198.51.100.7 . tcp . 443 }; add element inet t services { 198.51.100.7 . tcp . 443 : goto side }", false},
		{"an element of a large map that goes", strings.Replace(many, "198.51.100.7 . tcp . 80 : goto side", "198.51.100.7 . tcp . 443 : goto side", 1), "delete element inet t services { 198.51.100.7 . tcp . 443 }", true},
		{"a range of a large map, about others", many, "add element inet t ranges { 198.51.100.128-198.51.100.200 . tcp . 1-1000 : goto drops }", false},
		{"a range of a large map", many, "add element inet t ranges { 198.51.100.1-198.51.100.9 . tcp . 90-1000 : goto drops }", true},
		{"an address of a large set that others are not in", many, "add element inet t addresses { 10.9.0.1 }", false},
		{"an address of a large set that it was not in", many, "add element inet t addresses { 172.17.0.2 }", true},
		{"a rule and the element that it looked for", table, "flush chain inet t f\ndelete element inet t addresses { 172.17.0.2 }", true},
		{"a rule that is in use, and its element", inUse, "flush chain inet t f\nadd rule inet t f ip daddr 203.0.113.1 limit rate 5/second drop\ndelete element inet t addresses { 172.17.0.2 }", true},
		{"a new rule, and another element of its set", table, "delete element inet t addresses { 10.0.1.2 }\nadd rule inet t f ip saddr @addresses drop", true},
		{"a rule and the set that it looked into", table, "flush chain inet t f\ndelete set inet t addresses", true},
		{"elements of a set that a rule looks into twice", "table inet t { set s { type ipv4_addr; elements = { 10.9.9.9 }; }; chain f { type filter hook forward priority 0; ip saddr @s ip daddr @s drop; }; }", "add element inet t s { 172.17.0.2, 198.51.100.7 }", true},
		{"rules made anew in another order, whose sets change names", "table inet t { chain f { type filter hook forward priority 0; th dport { 80, 50739 } drop; ip daddr . th dport { 198.51.100.7 . 1-80 } drop; }; }", "flush chain inet t f\nadd rule inet t f ip daddr . th dport { 198.51.100.7 . 1-80 } drop\ninsert rule inet t f th dport { 80, 50739 } drop", false},
		{"rules made anew in another order, and one of their sets", "table inet t { chain f { type filter hook forward priority 0; th dport { 80, 50739 } drop; ip daddr . th dport { 198.51.100.7 . 1-80 } drop; }; }", "flush chain inet t f\nadd rule inet t f ip daddr . th dport { 198.51.100.7 . 1-80 } drop\ninsert rule inet t f th dport { 80, 443 } drop", true},
		{"a rule about others", table, "add rule inet t f ip daddr 203.0.113.2 drop", false},
		{"a base chain without rules", table, "add chain inet t g { type filter hook forward priority 5; }", false},
		{"a base chain without rules that drops", table, "add chain inet t g { type filter hook forward priority 5; policy drop; }", true},
		{"a base chain of another family that drops", table, "table ip6 u { chain g { type filter hook forward priority 5; policy drop; }; }", false},
		{"a base chain of type nat", table, "table ip n { chain g { type nat hook postrouting priority 100; masquerade; }; }", false},
		{"the end of the last base chain of type nat", table + "table ip n { chain g { type nat hook postrouting priority 100; }; }", "delete table ip n", true},
		{"the end of one of two base chains of type nat", table + "table ip n { chain g { type nat hook postrouting priority 100; }; }; table inet m { chain g { type nat hook prerouting priority -100; }; }", "delete table ip n", false},
		{"the last base chain of type nat in another table", table + "table ip n { chain g { type nat hook postrouting priority 100; }; }", "delete table ip n; table ip m { chain g { type nat hook postrouting priority 100; }; }", false},
		{"the last rule that has conntrack track, in a table that does not matter else", table + "table ip n { chain g { type nat hook postrouting priority 100; masquerade; }; }", "flush table ip n", true},
		{"the last rule that has conntrack track", table + "table ip n { chain g { type nat hook postrouting priority 100; masquerade; }; chain h { type filter hook forward priority 9; ip daddr 203.0.113.9 drop; }; }", "flush chain ip n g", true},
		{"the last such rule of IPv4", table + "table ip6 m { chain g { type filter hook forward priority 100; ct state invalid drop; }; }; table ip n { chain g { type nat hook postrouting priority 100; masquerade; }; }", "flush table ip n", true},
		{"one of two rules that have conntrack track", table + "table ip n { chain g { type nat hook postrouting priority 100; masquerade; }; chain h { type filter hook forward priority 9; ip daddr 203.0.113.9 ct state new drop; }; }", "flush chain ip n g", false},
		{"one such rule, and one of two in a table that does not matter else", table + "add rule inet t f ip daddr 203.0.113.9 ct state new drop\ntable ip n { chain g { type nat hook postrouting priority 100; masquerade; }; }", "flush table ip n", false},
		{"a rule that has not, of a table without others", table + "table ip n { chain h { type filter hook forward priority 9; ip daddr 203.0.113.9 drop; }; }", "flush table ip n", false},
		{"a base chain for this host that drops", table, "table ip n { chain g { type filter hook input priority 0; policy drop; }; }", false},
		{"a base chain for new connections", table, "table ip n { chain g { type filter hook forward priority 9; ct state new drop; }; }", false},
		{"a base chain for others", table, "table ip n { chain g { type filter hook forward priority 9; ip saddr 10.9.9.9 drop; }; }", false},
		{"a base chain that may drop", table, "table ip n { chain g { type filter hook forward priority 9; ip saddr 172.17.0.2 drop; }; }", true},
		{"the end of a base chain without rules", table + "table ip n { chain g { type filter hook forward priority 9; }; }", "delete table ip n", false},
		{"the end of a base chain for others", table + "table ip n { chain g { type filter hook forward priority 9; ip saddr 10.9.9.9 meta mark set 7; }; }", "delete table ip n", false},
		{"the end of a base chain for it", table + "table ip n { chain g { type filter hook forward priority 9; ip saddr 172.17.0.2 meta mark set 7; }; }", "delete table ip n", true},
		{"the end of a base chain that leads to rules for it", table + "table ip n { chain a { ip saddr 172.17.0.2 meta mark set 7; }; chain g { type filter hook forward priority 9; jump a; }; }", "delete table ip n", true},
		{"the end of a base chain that drops", table + "table ip n { chain g { type filter hook forward priority 9; policy drop; accept; }; }", "delete table ip n", true},
		{"a policy", table, "add chain inet t f { policy drop; }", true},
		{"a policy for this host", table + "table ip n { chain g { type filter hook input priority 0; }; }", "add chain ip n g { policy drop; }", false},
		{"another priority", table, "delete table inet t\n" + table + "add chain inet t x", false},
		{"a priority", table, "delete table inet t\ntable inet t { chain f { type filter hook forward priority 1; ip daddr 203.0.113.1 drop; }; }", true},
		{"a base chain in place of a chain", table + "add rule inet t side ip saddr 172.17.0.2 meta mark set 3", "delete chain inet t side\ntable inet t { chain side { type filter hook forward priority 1; ip saddr 172.17.0.2 meta mark set 3; }; }", true},
		{"a chain in place of a base chain", table, "delete chain inet t f\nadd chain inet t f", true},
		{"a device's chain while there is another", table + "table netdev d { chain i { type filter hook ingress device lo priority 0; }; }", "table netdev e { chain i { type filter hook ingress device lo priority 0; }; }", false},
		{"rules while there is a device's chain", table + "table netdev d { chain i { type filter hook ingress device lo priority 0; }; }", "table ip n { chain g { type filter hook forward priority 9; }; }", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, nstest.New(t), Options{})
			f.sh("ip link set lo up")
			if !f.sh(nftScript(c.before)) {
				t.Fatal("the rules before are refused")
			}
			f.follow()
			was := f.nft
			if !f.sh(nftScript(c.change)) {
				t.Fatal("the change is refused")
			}
			change := f.follow()
			conn := outbound(tcp, "443")
			if got := change.Concerns(conn); got != c.concerned || f.nft != was {
				t.Errorf("concerned %v (%q), read afresh %v", got, change.Everything(), f.nft != was)
			}
			if change.Concerns(conn) && !change.MayConcern(conn) {
				t.Error("concerned, but MayConcern is false")
			}
		})
	}
}

// TestConcernsLegacy holds the same for iptables-legacy.
func TestConcernsLegacy(t *testing.T) {
	const begin = `iptables-legacy -N SIDE; iptables-legacy -N OTHER; iptables-legacy -A FORWARD -j SIDE; iptables-legacy -A SIDE -d 203.0.113.1 -j DROP
		iptables-legacy -A FORWARD -s 172.17.0.2 -j MARK --set-mark 7; iptables-legacy -A SIDE -d 203.0.113.9 -g OTHER
`
	for _, c := range []struct {
		name, before, change string
		concerned, nothing   bool
	}{
		{"nothing", begin, "iptables-legacy -L; iptables-legacy-save | iptables-legacy-restore", false, true},
		{"a rule about others before it", begin, "iptables-legacy -I FORWARD -d 203.0.113.2 -p tcp --dport 1 -j DROP", false, false},
		{"a rule", begin, "iptables-legacy -A SIDE -s 172.17.0.2 -p tcp -j ACCEPT", true, false},
		{"a rule for new connections", begin, "iptables-legacy -I FORWARD -m conntrack --ctstate NEW -j DROP", false, false},
		{"a rule that no chain leads to", begin, "iptables-legacy -N ALONE; iptables-legacy -A ALONE -j DROP", false, true},
		{"a rule that is gone", begin, "iptables-legacy -D FORWARD 2", true, false},
		{"a rule about others that is gone", begin, "iptables-legacy -D SIDE 1", false, false},
		{"the order of two rules about others", begin, "iptables-legacy -F SIDE; iptables-legacy -A SIDE -d 203.0.113.9 -g OTHER; iptables-legacy -A SIDE -d 203.0.113.1 -j DROP", false, false},
		{"a policy", begin, "iptables-legacy -P FORWARD DROP", true, false},
		{"a policy for this host", begin, "iptables-legacy -P INPUT DROP", false, false},
		{"a table without rules", begin, "iptables-legacy -t mangle -L", false, true},
		{"a table", begin, "iptables-legacy -t mangle -A FORWARD -s 172.17.0.2 -j MARK --set-mark 3", true, false},
		{"a table of addresses", begin, "iptables-legacy -t nat -A POSTROUTING -j MASQUERADE", false, true},
		{"the first table", "true", "iptables-legacy -L", true, false},
		{"the first table of another family", begin, "ip6tables-legacy -L", true, false},
		{"a rule of nftables as well", begin, "nft add table ip t; iptables-legacy -P FORWARD DROP", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, nstest.New(t), Options{})
			if !f.sh(c.before) {
				t.Fatal("the rules before are refused")
			}
			f.follow()
			was := f.nft
			if !f.sh(c.change) {
				t.Fatal("the change is refused")
			}
			change := f.follow()
			conn := outbound(tcp, "443")
			if got := change.Concerns(conn); got != c.concerned || change.Nothing() != c.nothing || f.nft != was {
				t.Errorf("concerned %v (%q), nothing %v, read afresh %v", got, change.Everything(), change.Nothing(), f.nft != was)
			}
			if change.Concerns(conn) && !change.MayConcern(conn) {
				t.Error("concerned, but MayConcern is false")
			}
			_, ruleset := f.fresh()
			if live, read := f.PerPacket(), ruleset.PerPacket(); !sameRules(live, read) || f.legacy != ruleset.legacy || f.HasLegacy() != ruleset.HasLegacy() {
				t.Errorf("followed %v, read afresh %v", live, read)
			}
		})
	}
}

// The first chain of type nat sees a packet of a connection that has had no answer, as it is
// NEW; the second one does not.
func TestFirstTranslation(t *testing.T) {
	t.Parallel()
	f := follow(t, nstest.New(t), Options{})
	f.follow()
	unreplied := outbound(udp, "53")
	unreplied.Status = statusConfirmed
	for i, want := range []bool{true, false} {
		if !f.sh(nftScript(fmt.Sprintf("table ip n%d { chain g { type nat hook postrouting priority 100; }; }", i))) {
			t.Fatal("the rules are refused")
		}
		change := f.follow()
		if got := change.Concerns(unreplied); got != want || change.Nothing() == want {
			t.Errorf("chain %d: concerned %v, nothing %v", i+1, got, change.Nothing())
		}
		if change.Concerns(outbound(udp, "53")) {
			t.Errorf("chain %d: concerns a connection with an answer", i+1)
		}
	}
}
