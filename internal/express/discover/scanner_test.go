package discover

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/nstest"
)

// What a Scanner has after an update is what it would read afresh; it reads everything
// where more than the end of a pair has changed.
func TestUpdate(t *testing.T) {
	d := newDevice(t)
	// Else it takes a port's, which is a change of the bridge.
	d.run("ip link set br0 address 02:00:00:00:00:b0")
	var s *Scanner
	nstest.Do(t, d.ns, func() {
		var err error
		if s, err = NewScanner(); err != nil {
			t.Fatal(err)
		}
	})
	defer s.Close()
	if _, _, err := s.Update(Options{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scan(Options{}); err != nil {
		t.Fatal(err)
	}
	second := nstest.New(t)
	for _, tc := range []struct {
		name, commands string
		changed        []string // of the devices there before and after
		partly         bool
	}{
		{"nothing", "", nil, true},
		{"a container comes", fmt.Sprintf("ip link add v2 type veth peer name eth0 netns %s\nip link set v2 master br0\nip link set v2 up", second), []string{"v2"}, true},
		{"its other end comes up", fmt.Sprintf("ip -n %s link set eth0 up", second), []string{"v2"}, true},
		{"its qdisc", "tc qdisc add dev v2 root pfifo", []string{"v2"}, true},
		{"its name", "ip link set v2 down\nip link set v2 name v3\nip link set v3 up", []string{"v3"}, true},
		{"a pair that is moved", fmt.Sprintf("ip link add v4 type veth peer name v5\nip link set v5 netns %s\nip link set v4 master br0", second), []string{"v4"}, true},
		{"containers go", "ip link del v3\nip link del v4", []string{"v3", "v4"}, true},
		{"a bridge", "ip link set br0 mtu 1400", []string{"br0"}, false},
		{"an uplink", "ip link set up0 down", []string{"up0"}, false},
		{"another kind", "ip link add ifb0 type ifb", []string{"ifb0"}, false},
	} {
		before := indexes(t, d)
		if tc.commands != "" {
			d.run(tc.commands)
		}
		changed := make(map[int]bool)
		for _, all := range []map[string]int{before, indexes(t, d)} {
			for _, name := range tc.changed {
				if index, ok := all[name]; ok {
					changed[index] = true
				}
			}
		}
		got, partly, err := s.Update(Options{}, changed)
		if err != nil || partly != tc.partly {
			t.Errorf("%s: updated %v, %v; want %v", tc.name, partly, err, tc.partly)
			continue
		}
		want := d.scan(Options{})
		if !partly {
			if got, err = s.Scan(Options{}); err != nil {
				t.Fatal(err)
			}
		}
		got.Links, want.Links = nil, nil // with counters
		for _, ports := range [][]Port{got.Ports, want.Ports} {
			for i := range ports {
				ports[i].Packets = 0
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tc.name, got, want)
		}
	}
}

// indexes are the devices of a namespace.
func indexes(t *testing.T, d *device) map[string]int {
	all := make(map[string]int)
	nstest.Do(t, d.ns, func() {
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			all[l.Attrs().Name] = l.Attrs().Index
		}
	})
	return all
}
