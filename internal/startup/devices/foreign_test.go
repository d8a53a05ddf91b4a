package devices

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/nstest"
)

// Of the devices and addresses that a container makes, a bounded number is kept, and the others
// are not decoded.
func TestForeignIsBounded(t *testing.T) {
	ns := nstest.New(t)
	const many = 300
	var lines strings.Builder
	fmt.Fprintln(&lines, "link add eth0 type bridge\nlink set eth0 alias 'scon 1 first'\naddress add 10.0.0.1/16 dev eth0\naddress add fd00::1/64 dev eth0")
	for i := range many {
		fmt.Fprintf(&lines, "link add d%d type bridge\naddress add 10.0.%d.%d/32 dev eth0\n", i, 1+i/250, i%250)
	}
	batch := func(lines string) {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(lines)
		nstest.Do(t, ns, func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatal(err, string(out))
			}
		})
	}
	batch(lines.String())
	nstest.Do(t, ns, func() {
		var marked []netlink.Link
		var err error
		allocations := testing.AllocsPerRun(1, func() { marked, err = Marked("scon 1 ") })
		if err != nil || len(marked) != 1 || marked[0].Attrs().Name != "eth0" {
			t.Fatalf("marked: %v, %v", marked, err)
		}
		if list := testing.AllocsPerRun(1, func() { _, _ = netlink.LinkList() }); allocations > list/2 {
			t.Errorf("%v allocations for one of %d devices, and %v for a list", allocations, many, list)
		}
		leases, err := Leases(marked[0])
		if err != nil || len(leases) != 9 || leases[0].Address.String() != "10.0.0.1/16" || leases[8].Address.String() != "fd00::1/64" {
			t.Errorf("leases: %v, %v", leases, err)
		}
	})
	lines.Reset()
	for i := range many {
		fmt.Fprintf(&lines, "link set d%d alias 'scon 1 %d'\n", i, i)
	}
	batch(lines.String())
	nstest.Do(t, ns, func() {
		if marked, err := Marked("scon 1 "); err != nil || len(marked) != 64 {
			t.Errorf("%d marked, %v", len(marked), err)
		}
	})
}
