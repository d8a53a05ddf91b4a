package changes

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// lookups asks for the routes of a namespace.
func lookups(t *testing.T, ns string) (h *netlink.Handle) {
	t.Helper()
	var err error
	nstest.Do(t, ns, func() { h, err = netlink.NewHandle(unix.NETLINK_ROUTE) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// The kernel announces that a route goes while it still counts. When decisions are
// withdrawn the second time, it does not any more.
func TestRemovalIsStaleAgain(t *testing.T) {
	const removals = 200
	w := newDevice(t)
	lookup := lookups(t, w.ns)
	counts := func() bool { // a blackhole's answer is EINVAL
		_, err := lookup.RouteGet(net.IPv4(10, 9, 0, 1))
		return errors.Is(err, unix.EINVAL)
	}
	var calls, late atomic.Int32
	again := make(chan struct{}, 2*removals)
	w.watch(Options{OnStale: func(e Event) {
		if e.Kind != Route || !strings.HasSuffix(e.Reason, "removed") {
			return
		}
		if calls.Add(1)%2 == 0 {
			if counts() {
				late.Add(1)
			}
			again <- struct{}{}
		}
	}}, roomy)
	_, network, _ := net.ParseCIDR(netip.MustParsePrefix("10.9.0.1/32").String())
	for range removals {
		var err error
		nstest.Do(t, w.ns, func() {
			route := &netlink.Route{Dst: network, Type: unix.RTN_BLACKHOLE}
			if err = netlink.RouteAdd(route); err == nil {
				err = netlink.RouteDel(route)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-again:
		case <-time.After(patience):
			t.Fatalf("%d calls", calls.Load())
		}
	}
	if n := late.Load(); n != 0 {
		t.Errorf("%d of %d routes still counted", n, removals)
	}
}

// The kernel announces an address before it takes what is sent to it for its own. When decisions
// are withdrawn the second time, it does.
func TestAddressIsStaleAgain(t *testing.T) {
	const times = 200
	for _, addr := range []string{"10.2.0.9/32", "2001:db8:9::9/128"} {
		w := newDevice(t)
		ip, network, _ := net.ParseCIDR(addr)
		lookup := lookups(t, w.ns)
		var calls, early, late atomic.Int32
		again := make(chan struct{}, times)
		w.watch(Options{OnStale: func(e Event) {
			if e.Kind != Address || !strings.HasSuffix(e.Reason, "changed") {
				return
			}
			routes, err := lookup.RouteGet(ip)
			isLocal := err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
			switch second := calls.Add(1)%2 == 0; {
			case !second:
				if !isLocal {
					early.Add(1)
				}
				return
			case !isLocal:
				late.Add(1)
			}
			again <- struct{}{}
		}}, roomy)
		for range times {
			var err error
			nstest.Do(t, w.ns, func() {
				var up0 netlink.Link
				if up0, err = netlink.LinkByName("up0"); err != nil {
					return
				}
				address := &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}
				if err = netlink.AddrAdd(up0, address); err == nil {
					select {
					case <-again:
					case <-time.After(patience):
						t.Error("stale once")
					}
					err = netlink.AddrDel(up0, address)
				}
			})
			if err != nil || t.Failed() {
				t.Fatal(err)
			}
		}
		t.Logf("%s: announced %d times of %d before it counted", addr, early.Load(), times)
		if n := late.Load(); n != 0 {
			t.Errorf("%s: %d of %d times it did not count yet", addr, n, times)
		}
	}
}

// The kernel announces that a device comes up again before it revives next hops by it. When
// decisions are withdrawn the second time, they count.
func TestDeviceIsStaleAgain(t *testing.T) {
	w := newDevice(t)
	w.run("ip link add up1 type veth peer name peer1\nip link set peer1 up\nip link set up1 up\nip addr add 10.3.0.1/24 dev up1\n" +
		"ip route add 10.9.0.0/24 nexthop via 10.2.0.7 dev up0 nexthop via 10.3.0.7 dev up1")
	again := make(chan bool, 8)
	var calls atomic.Int32
	lookup := lookups(t, w.ns)
	_, network, _ := net.ParseCIDR("10.9.0.0/24")
	w.watch(Options{OnStale: func(e Event) {
		if e.Kind != Link || !strings.HasPrefix(e.Reason, "device up1: up") || calls.Add(1)%2 != 0 {
			return
		}
		routes, err := lookup.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: network}, netlink.RT_FILTER_DST)
		again <- err == nil && len(routes) == 1 && len(routes[0].MultiPath) == 2 && routes[0].MultiPath[1].Flags&unix.RTNH_F_DEAD == 0
	}}, roomy)
	for range 20 {
		w.run("ip link set up1 down\nip link set up1 up")
		select {
		case counts := <-again:
			if !counts {
				t.Error("a next hop does not count yet")
			}
		case <-time.After(patience):
			t.Fatal("stale once")
		}
	}
}
