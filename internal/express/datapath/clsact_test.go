package datapath_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/test/bed/nstest"
)

// Filters of others stay, and see all that enters before SCON, and all that
// leaves after SCON, wherever SCON leaves them a choice.
func TestClsactOrder(t *testing.T) {
	for name, priority := range map[string]uint16{"a usual priority": 100, "the first": 1, "the default": 0} {
		t.Run(name, func(t *testing.T) {
			b := newHookBed(t, true)
			nstest.Run(t, b.ns, "tc qdisc add dev wire clsact")
			b.addFilter("wire", priority)
			b.attach(datapath.UplinkHooks, b.wire)
			if got := b.names(b.wire, false); !slices.Equal(got, []string{"foreign", "scon_from_wire"}) {
				t.Errorf("ingress runs %v", got)
			}
			if got := b.names(b.wire, true); !slices.Equal(got, []string{"scon_to_wire", "foreign"}) {
				t.Errorf("egress runs %v", got)
			}

			b.detach(datapath.UplinkHooks, b.wire)
			for _, egress := range []bool{false, true} {
				if got := b.names(b.wire, egress); !slices.Equal(got, []string{"foreign"}) {
					t.Errorf("detached: %v run", got)
				}
			}
		})
	}
}

// The qdisc goes with the last filter if it is SCON's, and stays if it is not
// or if others have come to use it.
func TestClsactQdisc(t *testing.T) {
	for _, c := range []struct {
		name                  string
		before, between, stay bool
	}{
		{name: "SCON's"},
		{name: "somebody's", before: true, stay: true},
		{name: "SCON's, used by others", between: true, stay: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newHookBed(t, true)
			if c.before {
				nstest.Run(t, b.ns, "tc qdisc add dev wire clsact")
			}
			b.attach(datapath.UplinkHooks, b.wire)
			if c.between {
				b.addFilter("wire", 100)
			}
			b.detach(datapath.UplinkHooks[:1], b.wire)
			if !b.hasClsact("wire") {
				t.Fatal("the qdisc went before SCON's last filter")
			}
			b.detach(datapath.UplinkHooks[1:], b.wire)
			if got := b.hasClsact("wire"); got != c.stay {
				t.Errorf("the qdisc is there: %v, want %v", got, c.stay)
			}
		})
	}
}

// An ingress qdisc leaves no place for clsact: nothing is attached, and the
// error names it.
func TestClsactBesideIngress(t *testing.T) {
	b := newHookBed(t, true)
	nstest.Run(t, b.ns, "tc qdisc add dev wire ingress")
	for _, h := range datapath.UplinkHooks {
		nstest.Do(t, b.ns, func() {
			err := b.Attach(h, b.wire)
			if err == nil || !strings.Contains(err.Error(), "it has an ingress qdisc, beside which clsact cannot be added") {
				t.Errorf("%s: %v", h, err)
			}
		})
	}
	if got := b.names(b.wire, false); len(got) != 0 {
		t.Errorf("ingress runs %v", got)
	}
	b.wantAttached()
}

// addFilter adds another program's filter at both sides of a device.
func (b *bed) addFilter(dev string, priority uint16) {
	b.t.Helper()
	index, program := indexOf(b.t, b.ns, dev), foreign(b.t)
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		nstest.Do(b.t, b.ns, func() {
			err := netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: priority,
				},
				Fd: program.FD(), Name: "foreign", DirectAction: true,
			})
			if err != nil {
				b.t.Fatal(err)
			}
		})
	}
}

// filters are those of one side of a device, in their order.
func (b *bed) filters(dev int, egress bool) (all []*netlink.BpfFilter) {
	b.t.Helper()
	parent := uint32(netlink.HANDLE_MIN_INGRESS)
	if egress {
		parent = netlink.HANDLE_MIN_EGRESS
	}
	nstest.Do(b.t, b.ns, func() {
		l, err := netlink.LinkByIndex(dev)
		if err != nil {
			b.t.Fatal(err)
		}
		filters, err := netlink.FilterList(l, parent)
		if err != nil && err != unix.EINVAL { // no clsact qdisc
			b.t.Fatal(err)
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok {
				all = append(all, bpf)
			}
		}
	})
	return all
}

func (b *bed) names(dev int, egress bool) (names []string) {
	b.t.Helper()
	for _, f := range b.filters(dev, egress) {
		name, _, _ := strings.Cut(f.Name, ":")
		names = append(names, name)
	}
	return names
}

func (b *bed) hasClsact(dev string) bool {
	b.t.Helper()
	return strings.Contains(nstest.Run(b.t, b.ns, "tc qdisc show dev "+dev), "clsact")
}
