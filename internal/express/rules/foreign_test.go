package rules

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/nfhooks"
)

// A function at Netfilter's hooks that is no rule keeps those connections
// regular whose packets pass it.
func TestForeign(t *testing.T) {
	v4 := outbound(tcp, "443")
	v6 := over6(v4)
	for name, c := range map[string]struct {
		hook   nfhooks.Hook
		v4, v6 bool
	}{
		"ip forward":         {nfhooks.Hook{Family: unix.NFPROTO_IPV4, Point: unix.NF_INET_FORWARD, Function: "f"}, true, false},
		"ip prerouting":      {nfhooks.Hook{Family: unix.NFPROTO_IPV4, Point: unix.NF_INET_PRE_ROUTING, Priority: -400, Function: "f"}, true, false},
		"ip6 postrouting":    {nfhooks.Hook{Family: unix.NFPROTO_IPV6, Point: unix.NF_INET_POST_ROUTING, Function: "f"}, false, true},
		"bridge prerouting":  {nfhooks.Hook{Family: unix.NFPROTO_BRIDGE, Point: unix.NF_INET_PRE_ROUTING, Function: "f"}, true, true},
		"bridge postrouting": {nfhooks.Hook{Family: unix.NFPROTO_BRIDGE, Point: unix.NF_INET_POST_ROUTING, Program: 7}, true, true},
		"input":              {nfhooks.Hook{Family: unix.NFPROTO_IPV4, Point: unix.NF_INET_LOCAL_IN, Function: "f"}, false, false},
	} {
		r := newRuleset(foreignBases([]nfhooks.Hook{c.hook}), Options{})
		for _, of := range []struct {
			conn Conn
			want bool
		}{{v4, c.v4}, {v6, c.v6}} {
			rule, touched := r.Touches(of.conn)
			if touched != of.want || touched && (rule.Text != c.hook.String() || rule.Table != "netfilter") {
				t.Errorf("%s: %v touched %v by %+v, want %v", name, of.conn.Orig, touched, rule, of.want)
			}
		}
	}
}
