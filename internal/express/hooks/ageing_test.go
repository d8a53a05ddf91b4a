package hooks

import (
	"math"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/test/bed/nstest"
)

// A bridge that cannot be asked keeps MAC addresses for as long as it did; one that is gone
// bounds nothing.
func TestAgeing(t *testing.T) {
	nstest.Do(t, nstest.New(t), func() {
		ageingTime := uint32(600) // in 10 ms
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, AgeingTime: &ageingTime}
		if err := netlink.LinkAdd(bridge); err != nil {
			t.Fatal(err)
		}
		devices := []rules.Device{{Index: bridge.Index}}
		now := time.Now()
		later := func() time.Time { now = now.Add(ageingInterval); return now }
		a := ageing{}.ask(devices, later())
		if a.least != 6*time.Second {
			t.Errorf("%v", a.least)
		}
		var limit unix.Rlimit
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}, nil); err != nil {
			t.Fatal(err)
		}
		a = a.ask(devices, later())
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			t.Fatal(err)
		}
		if a.least != 6*time.Second {
			t.Errorf("%v while it cannot be asked", a.least)
		}
		if err := netlink.LinkDel(bridge); err != nil {
			t.Fatal(err)
		}
		if a = a.ask(devices, now); a.least != math.MaxInt64 {
			t.Errorf("%v without it", a.least)
		}
	})
}
