package discover

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
)

// Packets may go by a tunnel only if it has one fixed remote end: otherwise it sends a packet
// where its route says.
func TestTunnelEnds(t *testing.T) {
	none, any6 := net.IP(nil), net.IPv6unspecified
	for _, c := range []struct {
		name string
		link netlink.Link
		bare bool
	}{
		{"ipip", &netlink.Iptun{Remote: net.IPv4(10, 0, 0, 2)}, true},
		{"ipip without remote", &netlink.Iptun{Remote: none}, false},
		{"ipip to any", &netlink.Iptun{Remote: net.IPv4zero}, false},
		{"ipip external", &netlink.Iptun{Remote: net.IPv4(10, 0, 0, 2), FlowBased: true}, false},
		{"gre", &netlink.Gretun{Local: net.IPv4(10, 0, 0, 1), Remote: net.IPv4(10, 0, 0, 2)}, true},
		{"gre without a local address", &netlink.Gretun{Remote: net.IPv4(10, 0, 0, 2)}, true},
		{"gre to a group", &netlink.Gretun{Local: net.IPv4(10, 0, 0, 1), Remote: net.IPv4(224, 0, 0, 9)}, false},
		{"gre external", &netlink.Gretun{FlowBased: true}, false},
		{"ip6gre", &netlink.Gretun{Remote: net.ParseIP("fd00::2")}, true},
		{"ip6gre to any", &netlink.Gretun{Remote: any6}, false},
		{"ip6tnl", &netlink.Ip6tnl{Remote: net.ParseIP("fd00::2")}, true},
		{"ip6tnl to any", &netlink.Ip6tnl{Remote: any6}, false},
		{"ip6tnl external", &netlink.Ip6tnl{Remote: net.ParseIP("fd00::2"), FlowBased: true}, false},
		{"sit, which may be ISATAP", &netlink.Sittun{Remote: net.IPv4(10, 0, 0, 2)}, false},
		{"vti", &netlink.Vti{Remote: net.IPv4(10, 0, 0, 2)}, false},
	} {
		if why := whyNotBare(c.link); (why == "") != c.bare {
			t.Errorf("%s: reason %q, want one: %v", c.name, why, !c.bare)
		}
	}
}

// Packets may skip a tunnel of IPIP whose outer packets are this namespace's and have no
// other header than IP's.
func TestIPIPUplink(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "up0", Index: 7, ParentIndex: 3, NetNsID: -1, EncapType: "ipip"}
	elsewhere := attrs
	elsewhere.NetNsID = 0
	remote := net.IPv4(10, 0, 0, 2)
	for name, c := range map[string]struct {
		link          netlink.Link
		ipip, byRoute bool
	}{
		"ipip":                         {&netlink.Iptun{LinkAttrs: attrs, Remote: remote}, true, false},
		"by route":                     {&netlink.Iptun{LinkAttrs: attrs, Remote: net.IPv4zero}, true, true},
		"by devices of another":        {&netlink.Iptun{LinkAttrs: elsewhere, Remote: remote}, false, false},
		"in UDP":                       {&netlink.Iptun{LinkAttrs: attrs, Remote: remote, EncapType: 1}, false, false},
		"gre":                          {&netlink.Gretun{LinkAttrs: attrs, Remote: remote}, false, false},
		"over IPv6, which has no IPIP": {&netlink.Ip6tnl{LinkAttrs: attrs, Remote: net.ParseIP("fd00::2")}, false, false},
	} {
		var s scan
		s.addUplink(c.link)
		if len(s.found.Uplinks) != 1 {
			t.Errorf("%s: uplinks %+v, skipped %+v", name, s.found.Uplinks, s.found.Skipped)
			continue
		}
		if u := s.found.Uplinks[0]; u.IPIP != c.ipip || u.Tunnels() != c.ipip || (u.Below == 3) != c.ipip || u.ByRoute != c.byRoute {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// A tunnel without a remote end is no uplink where its packets cannot skip it.
func TestByRoute(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "up0", Index: 7, NetNsID: -1, EncapType: "ipip"}
	elsewhere := attrs
	elsewhere.NetNsID = 0
	for name, l := range map[string]netlink.Link{
		"by devices of another": &netlink.Iptun{LinkAttrs: elsewhere},
		"in UDP":                &netlink.Iptun{LinkAttrs: attrs, EncapType: 1},
		"external":              &netlink.Iptun{LinkAttrs: attrs, FlowBased: true},
		"to a group":            &netlink.Iptun{LinkAttrs: attrs, Remote: net.IPv4(224, 0, 0, 9)},
		"gre":                   &netlink.Gretun{LinkAttrs: attrs},
		"ip6tnl":                &netlink.Ip6tnl{LinkAttrs: attrs},
	} {
		var s scan
		s.addUplink(l)
		if len(s.found.Uplinks) != 0 || len(s.found.Skipped) != 1 {
			t.Errorf("%s: uplinks %+v, skipped %+v", name, s.found.Uplinks, s.found.Skipped)
		}
	}
}
