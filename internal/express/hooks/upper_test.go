package hooks

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/test/bed/check"
)

// Rules may name the devices that are stacked on a bridge or an uplink, and
// their VRFs, in place of it.
func TestUppers(t *testing.T) {
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
	above := uppersOf(links)
	for _, want := range [][]rules.Device{
		{{Name: "eth0", Index: 2}},
		{{Name: "br0", Index: 3}, {Name: "br0.10", Index: 4}, {Name: "br0.10.20", Index: 5}, {Name: "red", Index: 6}},
	} {
		if diff := check.Diff(want, above.of(want[0])); diff != "" {
			t.Errorf("device %s (-want +got):\n%s", want[0].Name, diff)
		}
	}
}

// Packets leave by a bridge at what is stacked on one, too.
func TestOverBridges(t *testing.T) {
	attrs := func(index, parent int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, NetNsID: -1}
	}
	elsewhere := attrs(6, 2)
	elsewhere.NetNsID = 0 // device 2 of another namespace
	got := overBridges([]netlink.Link{
		&netlink.Device{LinkAttrs: attrs(1, 0)},
		&netlink.Bridge{LinkAttrs: attrs(2, 0)},
		&netlink.Vlan{LinkAttrs: attrs(3, 2)},
		&netlink.Macvlan{LinkAttrs: attrs(4, 3)},
		&netlink.Vlan{LinkAttrs: attrs(5, 1)},
		&netlink.Veth{LinkAttrs: elsewhere},
		&netlink.Veth{LinkAttrs: attrs(7, 8)},
		&netlink.Veth{LinkAttrs: attrs(8, 7)},
	})
	want := map[int]bool{1: false, 2: true, 3: true, 4: true, 5: false, 6: false, 7: false, 8: false}
	if diff := check.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Two devices that are each other's parent, as a pair in one namespace, end.
func TestUppersOfPair(t *testing.T) {
	a := rules.Device{Name: "a", Index: 2}
	b := rules.Device{Name: "b", Index: 3}
	above := uppersOf([]netlink.Link{
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "a", ParentIndex: 3, NetNsID: -1}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "b", ParentIndex: 2, NetNsID: -1}},
	})
	if diff := check.Diff([]rules.Device{a, b}, above.of(b)); diff != "" {
		t.Error(diff)
	}
}

// watchedLink counts how often its attributes are read.
type watchedLink struct {
	netlink.Device
	reads *int
}

func (w *watchedLink) Attrs() *netlink.LinkAttrs {
	*w.reads++
	return &w.LinkAttrs
}

// A host with very many bridges reads each device a few times, not for each
// bridge.
func TestUppersOfManyDevices(t *testing.T) {
	const devices = 1000
	var links []netlink.Link
	reads := 0
	for i := range devices {
		links = append(links, &watchedLink{netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: i + 1, NetNsID: -1}}, &reads})
	}
	above := uppersOf(links)
	for i := range devices {
		above.of(rules.Device{Index: i + 1})
	}
	if reads > 10*devices {
		t.Errorf("%d devices were read %d times", devices, reads)
	}
}
