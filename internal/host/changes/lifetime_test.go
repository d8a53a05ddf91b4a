package changes

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/test/bed/nstest"
)

// expiry watches a namespace and returns when the next route is said to have expired.
func (w *watched) expiry() (e Event, at time.Time) {
	w.t.Helper()
	for !strings.Contains(e.Reason, "expired") {
		e = w.next()
		at = time.Now()
	}
	return e, at
}

// A route of IPv6 that expires makes decisions stale when it does, not when the kernel
// collects it; neither does one whose lifetime was made longer meanwhile.
func TestRouteExpires(t *testing.T) {
	t.Parallel()
	w := newDevice(t)
	w.run("ip route add 2001:db8:1::/64 dev up0 expires 2")
	since := time.Now()
	w.watch(Options{OnStale: func(Event) {}}, roomy)
	w.run(`
		ip route add 2001:db8:2::/64 dev up0 expires 3 proto bgp
		ip -6 route add default dev up0 expires 4
		ip route add 2001:db8:3::/64 dev up0 expires 2
		ip route change 2001:db8:3::/64 dev up0 expires 100`)
	for seconds, want := range []string{2: "2001:db8:1::/64", 3: "2001:db8:2::/64", 4: "::/0"} {
		if want == "" {
			continue
		}
		e, at := w.expiry()
		if e.Reason != "route "+want+" has expired" || !e.Stale || e.Kind != Route || e.Scope.Network.IsValid() != (want != "::/0") {
			t.Errorf("notified of %+v, want %s", e, want)
		}
		if early := at.Sub(since) - time.Duration(seconds)*time.Second; early < 0 {
			t.Errorf("%s expires %v too early", want, -early)
		}
		t.Logf("%s: after %v", e.Reason, at.Sub(since))
	}
}

// A router advertisement, or a command about an address, changes the lifetime of routes
// without a word. (Linux 6.18 lets the route expire at once.)
func TestLifetimeChangesSilently(t *testing.T) {
	t.Parallel()
	w := newDevice(t)
	w.run("ip addr add 2001:db8:5::1/64 dev up0 nodad")
	w.watch(Options{OnStale: func(Event) {}}, roomy)
	w.run("ip addr change 2001:db8:5::1/64 dev up0 valid_lft 2 preferred_lft 1")
	if e, _ := w.expiry(); e.Reason != "route 2001:db8:5::/64 has expired" {
		t.Errorf("notified of %+v", e)
	}
}

// A route that is listed in the last 10 ms of its life, when the kernel says that nothing is left
// of it, stays known until it has expired.
func TestRouteIsKnownToTheEnd(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		ip link add d0 type bridge
		ip link set d0 up
		ip route add 2001:db8:1::/64 dev d0 expires 1`) // of RTPROT_BOOT
	nstest.Do(t, ns, func() {
		a, err := openAsker()
		if err != nil {
			t.Fatal(err)
		}
		defer a.ask.Close()
		if err := a.ask.Strict(); err != nil {
			t.Fatal(err)
		}
		l := &lifetimes{asker: a, protocols: map[byte]bool{unix.RTPROT_BOOT: true}}
		for expired, looks := false, 0; !expired; looks++ {
			if err := l.read(); err != nil {
				t.Fatal(err)
			}
			if len(l.routes) != 1 {
				t.Fatalf("look %d: routes %v", looks, l.routes)
			}
			for _, r := range l.routes {
				expired = r.expired
			}
			time.Sleep(time.Millisecond)
		}
	})
}
