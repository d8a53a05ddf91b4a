package discover

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestBridging reads what not every kernel and command can set.
func TestBridging(t *testing.T) {
	message := func(of, data int, kind string, attributes map[int][]byte) []byte {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(of, nl.ZeroTerminated(kind))
		nested := info.AddRtAttr(data, nil)
		for typ, value := range attributes {
			nested.AddRtAttr(typ, value)
		}
		return append(make([]byte, unix.SizeofIfInfomsg), info.Serialize()...)
	}
	bridge := func(attributes map[int][]byte) []byte {
		return message(unix.IFLA_INFO_KIND, unix.IFLA_INFO_DATA, "bridge", attributes)
	}
	const maxLearned = 49
	for name, c := range map[string]struct {
		link []byte
		want bridging
	}{
		"a bridge":                 {bridge(map[int][]byte{unix.IFLA_BR_AGEING_TIME: nl.Uint32Attr(30000), maxLearned: nl.Uint32Attr(0), unix.IFLA_BR_VLAN_FILTERING: {0}}), bridging{}},
		"one that forgets":         {bridge(map[int][]byte{unix.IFLA_BR_AGEING_TIME: nl.Uint32Attr(0)}), bridging{forgets: true}},
		"one that learns 256":      {bridge(map[int][]byte{maxLearned: nl.Uint32Attr(256)}), bridging{limited: true}},
		"one with VLANs":           {bridge(map[int][]byte{unix.IFLA_BR_VLAN_FILTERING: {1}}), bridging{filters: true}},
		"one that shows IPv4":      {bridge(map[int][]byte{unix.IFLA_BR_NF_CALL_IPTABLES: {1}}), bridging{calls4: true}},
		"one that shows IPv6":      {bridge(map[int][]byte{unix.IFLA_BR_NF_CALL_IP6TABLES: {1}}), bridging{calls6: true}},
		"one with MST":             {bridge(map[int][]byte{unix.IFLA_BR_MULTI_BOOLOPT: {4, 0, 0, 0, 4, 0, 0, 0}}), bridging{mst: true}},
		"another kind":             {message(unix.IFLA_INFO_KIND, unix.IFLA_INFO_DATA, "vxlan", map[int][]byte{maxLearned: nl.Uint32Attr(1)}), bridging{}},
		"a port":                   {message(unix.IFLA_INFO_SLAVE_KIND, unix.IFLA_INFO_SLAVE_DATA, "bridge", map[int][]byte{unix.IFLA_BRPORT_LEARNING: {1}}), bridging{}},
		"one without learning":     {message(unix.IFLA_INFO_SLAVE_KIND, unix.IFLA_INFO_SLAVE_DATA, "bridge", map[int][]byte{unix.IFLA_BRPORT_LEARNING: {0}}), bridging{unlearnt: true}},
		"what is enslaved to else": {message(unix.IFLA_INFO_SLAVE_KIND, unix.IFLA_INFO_SLAVE_DATA, "bond", map[int][]byte{unix.IFLA_BRPORT_LEARNING: {0}}), bridging{}},
	} {
		if got := bridgingOf(c.link); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
