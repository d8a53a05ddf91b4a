package daemon_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/scon-project/scon/internal/lab"
)

var sentPackets = regexp.MustCompile(`Sent \d+ bytes (\d+) pkt`)

// packets reads how many packets a command of tc(8) says were sent.
func (b *bed) packets(command string) uint64 {
	b.t.Helper()
	out := b.sh(lab.Device, command)
	found := sentPackets.FindStringSubmatch(out)
	if found == nil {
		b.t.Fatalf("%s: %s", command, out)
	}
	n, err := strconv.ParseUint(found[1], 10, 64)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// Express packets wait in the uplink's qdisc with the others, in the class that
// a filter puts them into.
func TestQdiscAtUplink(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.outgoing("udp", 1)
	for _, tc := range []struct{ name, add, count string }{
		{"tbf", "tc qdisc add dev eth0 root handle 1: tbf rate 100mbit burst 64k latency 400ms", "tc -s qdisc show dev eth0 root"},
		{"htb", `tc qdisc add dev eth0 root handle 1: htb default 20
			tc class add dev eth0 parent 1: classid 1:10 htb rate 100mbit
			tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit
			tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dport ` + fmt.Sprint(portOf(c.client.RemoteAddr())) + ` 0xffff flowid 1:10`,
			"tc -s class show dev eth0 classid 1:10"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := b.in(t)
			c := c.in(b)
			b.sh(lab.Device, tc.add)
			c.goExpress()
			express, met := c.mustFlow().ExpressPackets[0], b.packets(tc.count)
			c.mustPing(50)
			if got := c.mustFlow().ExpressPackets[0] - express; got < 45 {
				t.Errorf("%d of 50 packets went express", got)
			}
			if got := b.packets(tc.count) - met; got < 50 {
				t.Errorf("the qdisc met %d of 50 packets", got)
			}
			b.sh(lab.Device, "tc qdisc del dev eth0 root")
		})
	}
	c.goExpress()
}

// A container's port with a qdisc gets its packets through it, and they are
// express all the same.
func TestQdiscAtPort(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{})
	c := b.incoming("udp", 1).goExpress()
	for range 2 {
		b.sh(lab.Device, "tc qdisc add dev veth1 root tbf rate 100mbit burst 64k latency 400ms")
		const count = "tc -s qdisc show dev veth1 root"
		eventually(t, "packets meet the qdisc", func() error {
			met, express := b.packets(count), c.mustFlow().ExpressPackets[0]
			c.mustPing(50)
			met, express = b.packets(count)-met, c.mustFlow().ExpressPackets[0]-express
			if met < 50 || express < 45 {
				return fmt.Errorf("%d of 50 met it, %d were express", met, express)
			}
			return nil
		})
		b.sh(lab.Device, "tc qdisc del dev veth1 root")
		c.goExpress()
	}
	b.wantNoInvalid()
}

// A port with somebody's ingress filter, which has to see every packet, is left
// alone while it has it.
func TestForeignFilter(t *testing.T) {
	t.Parallel()
	b := newExpress(t, layout{containers: 2})
	c, other := b.outgoing("tcp", 1).goExpress(), b.outgoing("tcp", 2).goExpress()
	b.sh(lab.Device, `
		tc qdisc replace dev veth1 clsact
		tc filter add dev veth1 ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
	eventually(t, "veth1 is skipped", func() error {
		if _, ok := b.container(1); ok {
			return fmt.Errorf("%+v", b.status())
		}
		return nil
	})
	c.waitGone()
	if s := b.status().Skipped; len(s) != 1 || s[0].Dev != "veth1" || !strings.Contains(s[0].Reason, "u32 filter, pref 7") {
		t.Errorf("skipped: %+v", s)
	}
	c.mustPing(10)
	other.goExpress()
	b.sh(lab.Device, "tc qdisc del dev veth1 clsact")
	b.waitHooked(1)
	c.goExpress()
	b.wantNoInvalid()
}
