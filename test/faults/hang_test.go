package faults

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// When the daemon hangs, the programs are inert within a second, for as long as it
// hangs. They are express again when it continues.
func TestHang(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	f := b.StartTraffic()
	for range 2 {
		f.WaitExpress()
		age := f.Datagrams.MustFlow().AgeMS
		signal(b, syscall.SIGSTOP)
		time.Sleep(scontest.Heartbeat)
		before := b.ExpressPackets()
		time.Sleep(2 * time.Second)
		f.Proceed()
		if now := b.ExpressPackets(); now != before {
			t.Errorf("%d packets went express while the daemon hung", now-before)
		}
		signal(b, syscall.SIGCONT)
		f.WaitExpress()
		if now := f.Datagrams.MustFlow().AgeMS; now < age {
			t.Errorf("the Conentry was replaced: it is %d ms old, before %d", now, age)
		}
	}
	f.WantUnbroken()
	b.WantNoInvalid()
}

// Rules that change while the daemon hangs apply at the end of the lease, and no packet
// follows an outdated decision when the daemon continues.
func TestRulesWhileHanging(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{})
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	for range 3 {
		waitOriginal(c)
		signal(b, syscall.SIGSTOP)
		b.Sh(lab.Device, "iptables-nft -I DOCKER-USER -p udp -s 172.17.0.2 -j DROP")
		time.Sleep(scontest.Heartbeat)
		before := n.Arrived.Load()
		signal(b, syscall.SIGCONT)
		time.Sleep(300 * time.Millisecond)
		if now := n.Arrived.Load(); now != before {
			t.Errorf("%d packets passed the rule", now-before)
		}
		b.Sh(lab.Device, "iptables-nft -D DOCKER-USER -p udp -s 172.17.0.2 -j DROP")
		n.Proceed(t, 10)
	}
}

// A connection that leaves conntrack is express no more from that moment on: no packet
// waits for the daemon.
func TestEndWhileHanging(t *testing.T) {
	t.Parallel()
	b := newExpress(t, scontest.Layout{Containers: 2})
	for name, c := range map[string]*scontest.Connection{
		"out":                b.Outgoing("udp", 1),
		"between containers": b.Connect("udp", lab.Container(1), lab.Container(2), netip.AddrPortFrom(lab.ContainerAddr(2), 0)),
	} {
		t.Run(name, func(t *testing.T) {
			b := b.In(t)
			c.GoExpress()
			signal(b, syscall.SIGSTOP)
			b.Sh(lab.Device, "conntrack -D -p udp --orig-port-src "+fmt.Sprint(c.Port()))
			before := b.ExpressPackets()
			c.MustPing(1)
			if now := b.ExpressPackets(); now != before {
				t.Errorf("%d packets went express without their connection", now-before)
			}
			signal(b, syscall.SIGCONT)
			c.WaitGone()
		})
	}
}

// signal sends the daemon a signal.
func signal(b *scontest.Bed, s syscall.Signal) {
	b.T.Helper()
	if err := b.Daemon.Signal(s); err != nil {
		b.T.Fatal(err)
	}
	if s == syscall.SIGSTOP {
		b.T.Cleanup(func() { _ = b.Daemon.Signal(syscall.SIGCONT) })
	}
}
