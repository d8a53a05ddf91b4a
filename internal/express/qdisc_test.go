package express_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

var sentPackets = regexp.MustCompile(`Sent \d+ bytes (\d+) pkt`)

// packets reads how many packets a command of tc(8) says were sent.
func packets(b *scontest.Bed, command string) uint64 {
	b.T.Helper()
	out := b.Sh(lab.Device, command)
	found := sentPackets.FindStringSubmatch(out)
	if found == nil {
		b.T.Fatalf("%s: %s", command, out)
	}
	n, err := strconv.ParseUint(found[1], 10, 64)
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}

// Express packets wait in the uplink's qdisc with the others, in the class that
// a filter puts them into.
func TestQdiscAtUplink(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1)
	u32 := fmt.Sprintf("u32 match ip dport %d 0xffff flowid ", scontest.PortOf(c.Client.RemoteAddr()))
	for _, tc := range []struct{ name, add, count string }{
		{"fq_codel", "tc qdisc add dev eth0 root handle 1: fq_codel", "tc -s qdisc show dev eth0 root"},
		{"prio", `tc qdisc add dev eth0 root handle 1: prio
			tc filter add dev eth0 parent 1: protocol ip prio 1 ` + u32 + "1:3\n\t\t\ttc qdisc add dev eth0 parent 1:3 handle 30: pfifo",
			"tc -s qdisc show dev eth0 parent 1:3"},
		{"tbf", "tc qdisc add dev eth0 root handle 1: tbf rate 100mbit burst 64k latency 400ms", "tc -s qdisc show dev eth0 root"},
		{"htb", `tc qdisc add dev eth0 root handle 1: htb default 20
			tc class add dev eth0 parent 1: classid 1:10 htb rate 100mbit
			tc class add dev eth0 parent 1: classid 1:20 htb rate 100mbit
			tc filter add dev eth0 parent 1: protocol ip prio 1 ` + u32 + "1:10",
			"tc -s class show dev eth0 classid 1:10"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := b.In(t)
			c := c.In(b)
			needQdisc(b, tc.name)
			b.Sh(lab.Device, tc.add)
			c.GoExpress()
			express, seen := c.MustFlow().ExpressPackets[0], packets(b, tc.count)
			c.MustPing(50)
			if got := c.MustFlow().ExpressPackets[0] - express; got < 45 {
				t.Errorf("%d of 50 packets went express", got)
			}
			if got := packets(b, tc.count) - seen; got < 50 {
				t.Errorf("the qdisc saw %d of 50 packets", got)
			}
			b.Sh(lab.Device, "tc qdisc del dev eth0 root")
		})
	}
	c.GoExpress()
}

// needQdisc skips a test where the kernel has no qdisc of a kind.
func needQdisc(b *scontest.Bed, kind string) {
	b.T.Helper()
	if kind == "tbf" || kind == "htb" {
		return
	}
	need(b, "tc qdisc add dev lo root "+kind, "tc qdisc del dev lo root")
}

// need skips a test where the kernel cannot do what a command tries in edge,
// which another one takes back.
func need(b *scontest.Bed, try, undo string) {
	b.T.Helper()
	words := strings.Fields(try)
	err := b.Do(lab.Edge, func() error { return exec.Command(words[0], words[1:]...).Run() })
	if err != nil {
		b.T.Skipf("not in this kernel: %s: %v", try, err)
	}
	b.Sh(lab.Edge, undo)
}

// Filters at the uplink's egress see express packets, with the addresses that
// they leave with: one that is added takes them out at once.
func TestFilterAtUplinkEgress(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{})
	b.Sh(lab.Device, "tc qdisc add dev eth0 clsact") // of another program, before SCON
	b.Up()
	taken, other := b.Outgoing("udp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	for range 2 {
		b.Sh(lab.Device, fmt.Sprintf("tc filter add dev eth0 egress protocol ip prio 9 u32 match ip src 10.77.0.1 match ip dport %d 0xffff action mirred egress redirect dev lo",
			scontest.PortOf(taken.Server.LocalAddr())))
		if _, err := taken.Client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		other.GoExpress() // what is sent later arrives
		wantNothing(taken)
		b.Sh(lab.Device, "tc filter del dev eth0 egress prio 9")
		taken.GoExpress()
	}
	b.WantNoInvalid()
}

// wantNothing fails if something has arrived at the server.
func wantNothing(c *scontest.Connection) {
	c.B.T.Helper()
	_ = c.Server.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, err := c.Server.Read(make([]byte, 10)); err == nil {
		c.B.T.Errorf("%d bytes arrive that are kept back", n)
	}
}

// A container's port with a qdisc gets its packets through it, and they are
// express all the same.
func TestQdiscAtPort(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Incoming("udp", 1).GoExpress()
	for range 2 {
		b.Sh(lab.Device, "tc qdisc add dev veth1 root tbf rate 100mbit burst 64k latency 400ms")
		const count = "tc -s qdisc show dev veth1 root"
		scontest.Eventually(t, "packets pass the qdisc", func() error {
			seen, express := packets(b, count), c.MustFlow().ExpressPackets[0]
			c.MustPing(50)
			seen, express = packets(b, count)-seen, c.MustFlow().ExpressPackets[0]-express
			if seen < 50 || express < 45 {
				return fmt.Errorf("%d of 50 passed it, %d were express", seen, express)
			}
			return nil
		})
		b.Sh(lab.Device, "tc qdisc del dev veth1 root")
		c.GoExpress()
	}
	b.WantNoInvalid()
}

// A device that has another program's ingress filter when the daemon starts is left
// alone as well.
func TestForeignFilterAtStart(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Containers: 2})
	b.Sh(lab.Device, `
		tc qdisc add dev veth2 clsact
		tc filter add dev veth2 ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
	b.Up()
	if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "veth2" || !strings.Contains(s[0].Reason, "u32 filter, pref 7") {
		t.Errorf("skipped: %+v", s)
	}
	b.Outgoing("udp", 1).GoExpress()
	c := b.Outgoing("udp", 2)
	c.MustPing(20)
	if f, err := c.Flow(); err == nil {
		t.Errorf("it has a Conentry: %+v", f)
	}
}

// So are a port and an uplink that get one in a block that devices share: what the
// kernel announces it for no device.
func TestForeignFilterInBlock(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	needTCX(b) // else SCON's filters are in the qdisc, which cannot get a block then
	b.Sh(lab.Device, `
		tc qdisc replace dev veth1 ingress_block 5 clsact
		tc qdisc replace dev eth0 ingress_block 5 clsact`)
	inside := b.ConnectTo("udp", lab.Container(2), lab.Container(1), netip.AddrPortFrom(b.Addr(lab.Container(1)), 6000), 6000, 0)
	b.Outgoing("udp", 1).GoExpress()
	inside.GoExpress()
	b.Sh(lab.Device, "tc filter add block 5 protocol ip prio 7 u32 match u32 0 0 classid 1:1")
	scontest.Eventually(t, "both devices are skipped", func() error {
		s := b.Status().Skipped
		if len(s) != 2 || !strings.Contains(s[0].Reason, "u32 filter, pref 7") || !strings.Contains(s[1].Reason, "u32 filter, pref 7") {
			return fmt.Errorf("skipped: %+v", s)
		}
		return nil
	})
	inside.WaitGone()
	b.Sh(lab.Device, "tc filter del block 5 prio 7")
	b.WaitHooked(2)
	inside.GoExpress()
}

// A port with another program's ingress filter, which has to see every packet, is left
// alone while it has it.
func TestForeignFilter(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	c, other := b.Outgoing("tcp", 1).GoExpress(), b.Outgoing("tcp", 2).GoExpress()
	b.Sh(lab.Device, `
		tc qdisc replace dev veth1 clsact
		tc filter add dev veth1 ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
	scontest.Eventually(t, "veth1 is skipped", func() error {
		if _, ok := b.Container(1); ok {
			return fmt.Errorf("%+v", b.Status())
		}
		return nil
	})
	c.WaitGone()
	if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "veth1" || !strings.Contains(s[0].Reason, "u32 filter, pref 7") {
		t.Errorf("skipped: %+v", s)
	}
	c.MustPing(10)
	other.GoExpress()
	b.Sh(lab.Device, "tc qdisc del dev veth1 clsact")
	b.WaitHooked(1)
	c.GoExpress()
	b.WantNoInvalid()
}
