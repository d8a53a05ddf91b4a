package devices

import (
	"net/netip"
	"testing"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/internal/startup/cni"
	"github.com/scon-project/scon/internal/startup/ipam"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A container's addresses stay in its port's table until it is removed, and another process
// finds the same table. Sweep removes the addresses of a device that ended by itself.
func TestRouteTable(t *testing.T) {
	host, pod := nstest.New(t), nstest.New(t)
	nstest.Run(t, host, "ip link add m0 type veth peer name m1")
	c := &cni.Conf{Network: cni.Network{Name: "n", Kind: cni.TCRouting, Master: "m0"}}
	nstest.Do(t, host, func() {
		open := func() *Host {
			h, err := Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(h.Close)
			return h
		}
		want := func(h *Host, what string, used bool) {
			t.Helper()
			port, err := indexOf("m0")
			if err != nil {
				t.Fatal(err)
			}
			r, err := h.routes.of(port)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.used(); err != nil || got != used {
				t.Errorf("%s: the table is used: %v, %v", what, got, err)
			}
		}
		ns, err := netns.Open(pod)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		first, second := open(), open()
		if err := first.Prepare(c); err != nil {
			t.Fatal(err)
		}
		spec := Spec{Conf: c, Netns: ns, Name: "eth0", Host: "p0", Leases: []ipam.Lease{{Address: netip.MustParsePrefix("10.0.0.2/24")}}}
		attach := func() {
			t.Helper()
			if _, err := first.Make(spec); err != nil {
				t.Fatal(err)
			}
		}
		want(second, "prepared", false)
		attach()
		want(second, "made", true)
		if err := second.Remove(&c.Network, "p0"); err != nil {
			t.Fatal(err)
		}
		want(first, "removed", false)
		attach()
		nstest.Run(t, host, "ip link del p0")
		want(first, "gone", true)
		if err := second.Sweep(c); err != nil {
			t.Fatal(err)
		}
		want(first, "swept", false)
		if err := second.Unprepare(c); err != nil {
			t.Fatal(err)
		}
		if f, err := filterNamed(mustIndex(t, "m0"), routeIn); err != nil || f != nil {
			t.Errorf("the filter is left: %v", err)
		}
	})
}

func mustIndex(t *testing.T, name string) int {
	t.Helper()
	index, err := indexOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return index
}
