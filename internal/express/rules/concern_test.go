package rules

import (
	"testing"

	"github.com/scon-project/scon/internal/host/nstest"
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
	for _, c := range []struct {
		name, before, change string
		concerned            bool
	}{
		{"a rule and the element that it looked for", table, "flush chain inet t f\ndelete element inet t addresses { 172.17.0.2 }", true},
		{"a rule that is in use, and its element", inUse, "flush chain inet t f\nadd rule inet t f ip daddr 203.0.113.1 limit rate 5/second drop\ndelete element inet t addresses { 172.17.0.2 }", true},
		{"a new rule, and another element of its set", table, "delete element inet t addresses { 10.0.1.2 }\nadd rule inet t f ip saddr @addresses drop", true},
		{"a rule and the set that it looked into", table, "flush chain inet t f\ndelete set inet t addresses", true},
		{"a rule about others", table, "add rule inet t f ip daddr 203.0.113.2 drop", false},
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
