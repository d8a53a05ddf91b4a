package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/rules"
)

// Rules may name the devices that are stacked on a bridge or an uplink, and
// their VRFs, in place of it.
func TestLayer3(t *testing.T) {
	attrs := func(index int, name string, parent, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, ParentIndex: parent, MasterIndex: master, NetNsID: -1}
	}
	container := attrs(7, "veth0", 2, 3)
	container.NetNsID = 0 // its other end has number 2 there
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: attrs(2, "eth0", 0, 0)},
		&netlink.Bridge{LinkAttrs: attrs(3, "br0", 0, 0)},
		&netlink.Vlan{LinkAttrs: attrs(4, "br0.10", 3, 6)},
		&netlink.Vlan{LinkAttrs: attrs(5, "br0.10.20", 4, 0)},
		&netlink.Vrf{LinkAttrs: attrs(6, "red", 0, 0)},
		&netlink.Veth{LinkAttrs: container},
	}
	for index, want := range map[int][]rules.Device{
		2: {{Name: "eth0", Index: 2}},
		3: {{Name: "br0", Index: 3}, {Name: "br0.10", Index: 4}, {Name: "br0.10.20", Index: 5}, {Name: "red", Index: 6}},
	} {
		if diff := cmp.Diff(want, layer3(links, index)); diff != "" {
			t.Errorf("device %d (-want +got):\n%s", index, diff)
		}
	}
}
