package express_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// waitDelivery waits until explain names why packets for the first container
// take its port's queue, or "" for none.
func waitDelivery(b *scontest.Bed, why string) {
	b.T.Helper()
	scontest.Eventually(b.T, "delivery because of "+why, func() error {
		x, err := b.Daemon.Explain(filepath.Base(b.Node(lab.Container(1))))
		if err != nil {
			return err
		}
		got := ""
		for _, f := range x.Findings {
			if strings.HasPrefix(f.What, "express packets for it take the queue of ") {
				got = f.Why
			}
		}
		if (got == "") != (why == "") || !strings.Contains(got, why) {
			return fmt.Errorf("explained by %q", got)
		}
		return nil
	})
}

// queuedPackets returns how many packets the host's end has transmitted.
func queuedPackets(b *scontest.Bed) (n uint64) {
	b.T.Helper()
	err := b.Do(lab.Device, func() error {
		l, err := netlink.LinkByName(lab.Port(1))
		if err == nil {
			n = l.Attrs().Statistics.TxPackets
		}
		return err
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return n
}

// Packets take the port's queue while they would skip or overtake a program or
// packet steering in the container, and return to the direct path within a
// second.
func TestDeliveryThroughQueue(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	waitDelivery(b, "")
	c := b.Outgoing("udp", 1).GoExpress()
	wantQueued := func(want bool) {
		t.Helper()
		c.GoExpress()
		express, before := c.MustFlow().ExpressPackets[1], queuedPackets(b)
		c.MustPing(100)
		queued := queuedPackets(b) - before
		if express = c.MustFlow().ExpressPackets[1] - express; express < 95 {
			t.Errorf("%d of 100 packets went express", express)
		}
		if want && queued < 100 || !want && queued > 20 {
			t.Errorf("%d of 100 packets took the queue", queued)
		}
	}
	wantQueued(false)

	steer(b, lab.Container(1), "eth0", "1")
	waitDelivery(b, "(rps_cpus) at the container's device")
	wantQueued(true)
	steer(b, lab.Container(1), "eth0", "0")
	waitDelivery(b, "")
	wantQueued(false)

	steer(b, lab.Device, lab.Port(1), "1")
	waitDelivery(b, "(rps_cpus) at "+lab.Port(1))
	steer(b, lab.Device, lab.Port(1), "0")
	waitDelivery(b, "")

	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	var xdp link.Link
	err = b.Do(lab.Container(1), func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		xdp, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	waitDelivery(b, "XDP")
	wantQueued(true)
	if err := xdp.Close(); err != nil {
		t.Fatal(err)
	}
	waitDelivery(b, "")
	wantQueued(false)

	b.Sh(lab.Container(1), "ip link add inner type bridge\nip link set eth0 master inner")
	waitDelivery(b, "has a master")
	b.Sh(lab.Container(1), "ip link set eth0 nomaster")
	waitDelivery(b, "")
}

// Packets for an unused MAC address reach every container, and none accepts
// them, including the one whose connection goes express.
func TestMACOfNobody(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	waitDelivery(b, "")
	c := b.Outgoing("udp", 1).GoExpress()
	replies := scontest.SendNumbers(t, c.Server, c.Client, 1, time.Millisecond)
	c.WaitExpress(func() error { _, err := c.Client.Write([]byte("x")); return err })
	b.Sh(lab.Device, "ip neigh replace 172.17.0.2 lladdr 02:00:00:00:99:99 nud permanent dev docker0")
	since := time.Now()
	time.Sleep(scontest.Lease / 2)
	if late := time.Unix(0, replies.Latest.Load()).Sub(since); late > scontest.Lease/4 {
		t.Errorf("a packet arrived that was sent %v after the MAC address was another's", late)
	}
	b.Sh(lab.Device, "ip neigh del 172.17.0.2 dev docker0")
	replies.Proceed(t, 100)
}

// Ports of a bridge that steers its packets are not hooked: packets out of a
// container could overtake each other.
func TestSteeringBridge(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	steer(b, lab.Device, lab.Bridge, "1")
	scontest.Eventually(t, "the port is skipped", func() error {
		for _, s := range b.Status().Skipped {
			if s.Dev == lab.Port(1) && strings.Contains(s.Reason, "rps_cpus") {
				return nil
			}
		}
		return fmt.Errorf("skipped are %v", b.Status().Skipped)
	})
	c.MustPing(20)
	if flows := b.Flows(); len(flows) > 0 {
		t.Errorf("Conentries of a port that is not hooked: %v", flows)
	}
	steer(b, lab.Device, lab.Bridge, "0")
	b.WaitHooked(1)
	c.GoExpress()
}

// Nor are those of a bridge whose steering cannot be read. That is logged once, and explain
// says it.
func TestSteeringUnreadable(t *testing.T) {
	t.Parallel()
	b := scontest.New(t, scontest.Layout{Service: true})
	show := b.HideSys()
	b.Up()
	const words = "cannot be read"
	var reason string
	for _, s := range b.Status().Skipped {
		if s.Dev == lab.Port(1) {
			reason = s.Reason
		}
	}
	if !strings.Contains(reason, words) || !strings.Contains(reason, "mount a sysfs") {
		t.Errorf("skipped are %v", b.Status().Skipped)
	}
	b.Outgoing("udp", 1).MustPing(200)
	if n := b.Status().Totals.ExpressPackets; n > 0 {
		t.Errorf("%d packets went express", n)
	}
	x, err := b.Daemon.Explain(lab.ContainerAddr(1).String())
	if text := fmt.Sprint(x.Findings); err != nil || !strings.Contains(text, words) {
		t.Errorf("explain says %s, %v", text, err)
	}
	for range 3 { // scans
		b.Sh(lab.Device, "ip link add more type veth")
		b.Sh(lab.Device, "ip link del more")
		b.Status()
	}
	scontest.Eventually(t, "the daemon warns", func() error {
		b.Status() // looks are due
		if n := strings.Count(b.Daemon.Log(), "packet steering"); n != 1 {
			return fmt.Errorf("%d messages", n)
		}
		return nil
	})
	show()
	b.WaitHooked(1)
	b.Outgoing("udp", 1).GoExpress()
}

// A veth pair drops packets that exceed its receiver's MTU, also where that is
// smaller than the port's. Packets that fit go express.
func TestSmallerMTUInside(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	const fits, longer = 1000, 1400
	// arrives sends datagrams of both lengths: those that fit must arrive.
	arrives := func() bool {
		t.Helper()
		buf := make([]byte, longer)
		for _, n := range []int{longer, fits} {
			if _, err := c.Server.Write(buf[:n]); err != nil {
				t.Fatal(err)
			}
		}
		sizes := make(map[int]bool)
		for !sizes[fits] {
			got, err := scontest.ReadDatagram(c.Client)
			if err != nil {
				t.Fatal(err)
			}
			sizes[len(got)] = true
		}
		return sizes[longer]
	}
	wantLonger := func(want bool) {
		t.Helper()
		const rounds = 50
		scontest.Eventually(t, "the daemon has seen the MTU", func() error {
			express := c.MustFlow().ExpressPackets[1]
			for range rounds {
				if arrives() != want {
					return fmt.Errorf("longer datagrams arrive: want %v", want)
				}
			}
			if express = c.MustFlow().ExpressPackets[1] - express; express < rounds*9/10 {
				return fmt.Errorf("%d packets went express", express)
			}
			return nil
		})
	}
	wantLonger(true)
	b.Sh(lab.Container(1), "ip link set eth0 mtu 1300")
	wantLonger(false)
	b.Sh(lab.Container(1), "ip link set eth0 mtu 1500")
	wantLonger(true)
}
