package express_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

const deniedPort = 7777

// denied is a container that sends, from a published port, to a port of edge
// that the rules of device deny: over IPv6 where the lab has it.
type denied struct {
	b        *scontest.Bed
	from, to *net.UDPConn
}

func newDenied(b *scontest.Bed, rule string) *denied {
	b.T.Helper()
	b.Sh(lab.Device, `
		nft add table inet denied
		nft add chain inet denied forward { type filter hook forward priority 0 ; }
		nft add rule inet denied forward ct state established accept
		nft add rule inet denied forward udp dport 7777 `+rule)
	d := &denied{b: b}
	from := &net.UDPAddr{Port: int(lab.Publications(1)[0].Container)}
	to, network := &net.UDPAddr{IP: lab.EdgeAddr.AsSlice(), Port: deniedPort}, "udp4"
	if b.Opts.IPv6 {
		to.IP, network = lab.EdgeAddr6.AsSlice(), "udp6"
	}
	err := errors.Join(
		b.Do(lab.Edge, func() (err error) { d.to, err = net.ListenUDP(network, to); return err }),
		b.Do(lab.Container(1), func() (err error) { d.from, err = net.DialUDP(network, from, to); return err }),
	)
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { d.from.Close(); d.to.Close() })
	return d
}

// send sends that many datagrams, one millisecond apart.
func (d *denied) send(n int) {
	d.b.T.Helper()
	for range n {
		if _, err := d.from.Write([]byte("denied")); err != nil && !scontest.Refused(err) {
			d.b.T.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// arrives reports whether a datagram reaches edge.
func (d *denied) arrives() bool {
	_ = d.to.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := d.to.Read(make([]byte, 100))
	return err == nil
}

func (d *denied) flow() (api.Flow, bool) {
	for _, f := range d.b.Flows() {
		if f.Orig.Dport == deniedPort {
			return f, true
		}
	}
	return api.Flow{}, false
}

// waitDiscard sends until packets are discarded.
func (d *denied) waitDiscard() api.Flow {
	d.b.T.Helper()
	var found api.Flow
	scontest.Eventually(d.b.T, "a discard", func() error {
		d.send(20)
		f, ok := d.flow()
		if !ok || f.State != api.FlowDiscard || f.Confilter != api.ConfilterDiscard || f.DiscardedPackets == 0 {
			return fmt.Errorf("the flow is %+v", f)
		}
		found = f
		return nil
	})
	return found
}

// needReasons skips the test where the kernel does not report drop reasons.
func needReasons(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skipf("there are no discards without the kernel's BTF: %v", err)
	}
}

// Packets that the rules certainly drop, and that Netfilter is seen to drop,
// are discarded. As soon as the rules accept them, they pass.
func TestDiscard(t *testing.T) {
	t.Parallel()
	needReasons(t)
	for name, layout := range map[string]scontest.Layout{"IPv4": {}, "IPv6": {IPv6: true}} {
		t.Run(name, func(t *testing.T) { testDiscard(t, scontest.NewExpress(t, layout)) })
	}
}

func testDiscard(t *testing.T, b *scontest.Bed) {
	d := newDenied(b, "counter drop")
	// A change of the rules ends all discards: another test that releases the lock of
	// iptables-legacy may have changed them.
	scontest.Eventually(t, "500 packets of one discard", func() error {
		before := d.waitDiscard()
		start := time.Now()
		d.send(500)
		took := time.Since(start)
		after, ok := d.flow()
		if !ok || after.AgeMS < took.Milliseconds() {
			return fmt.Errorf("it ended: %+v", after)
		}
		if more := after.DiscardedPackets - before.DiscardedPackets; more < 400 {
			t.Errorf("%d of 500 packets were dropped at once", more)
		}
		return nil
	})
	if d.arrives() {
		t.Error("a packet got through that the rules drop")
	}

	b.Sh(lab.Device, "nft flush chain inet denied forward")
	scontest.Eventually(t, "a packet gets through", func() error {
		d.send(1)
		if !d.arrives() {
			return errors.New("none arrives")
		}
		return nil
	})
	if _, still := d.flow(); still {
		if f, _ := d.flow(); f.Confilter == api.ConfilterDiscard {
			t.Errorf("a discard of packets that get through: %+v", f)
		}
	}
	total := b.Status().Totals.DiscardedPackets
	d.send(100)
	if got := b.Status().Totals.DiscardedPackets; got != total {
		t.Errorf("%d packets were discarded that the rules let pass", got-total)
	}
}

// A packet from the other side that passes creates a connection, whose replies
// the rules accept.
func TestDiscardEndsWithConnection(t *testing.T) {
	t.Parallel()
	needReasons(t)
	b := scontest.NewExpress(t, scontest.Layout{})
	d := newDenied(b, "drop")
	d.waitDiscard()
	published := netip.AddrPortFrom(lab.DeviceAddr, lab.Publications(1)[0].Device)
	if _, err := d.to.WriteToUDPAddrPort([]byte("request"), published); err != nil {
		t.Fatal(err)
	}
	_ = d.from.SetReadDeadline(time.Now().Add(scontest.Patience))
	if _, err := d.from.Read(make([]byte, 100)); err != nil {
		t.Fatalf("the other side's request: %v", err)
	}
	d.send(1)
	if !d.arrives() {
		t.Error("the answer to a request that got through is dropped")
	}
}

// What containers of one bridge send each other never comes to the rules about what the
// bridge passes up to IP. So a rule there that drops all says nothing of a packet that
// another rule rejects, and the sender hears of each.
func TestNoDiscardOnBridge(t *testing.T) {
	t.Parallel()
	needReasons(t)
	b := scontest.NewExpress(t, scontest.Layout{Containers: 2})
	b.Sh(lab.Device, `
		sysctl -q -w net.ipv4.icmp_ratemask=0
		nft add table bridge denied
		nft add chain bridge denied input { type filter hook input priority 0 ; }
		nft add rule bridge denied input meta l4proto udp drop`)
	d := newDenied(b, "reject")
	neighbour := &net.UDPAddr{IP: lab.ContainerAddr(2).AsSlice(), Port: deniedPort}
	var from *net.UDPConn
	if err := b.Do(lab.Container(1), func() (err error) { from, err = net.DialUDP("udp4", nil, neighbour); return err }); err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	d.from.Close()
	d.from = from
	for i := range 300 {
		d.send(1)
		_ = from.SetReadDeadline(time.Now().Add(scontest.Patience))
		if _, err := from.Read(make([]byte, 1)); !scontest.Refused(err) {
			t.Fatalf("packet %d: %v, not that it was rejected", i, err)
		}
	}
	if n := b.Status().Totals.DiscardedPackets; n > 0 {
		t.Errorf("%d packets were discarded that a rule rejects", n)
	}
}

// Packets that a rule rejects, counts or accepts now and then are never
// discarded.
func TestNoDiscard(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"reject":  "reject",
		"limited": "limit rate over 5/second drop",
		"logged":  "log drop",
		"set":     "update @seen { ip saddr } drop",
		"some":    "numgen inc mod 2 0 drop",
	} {
		t.Run(name, func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{})
			if name == "set" {
				b.Sh(lab.Device, `
					nft add table inet denied
					nft add set inet denied seen { type ipv4_addr ; flags dynamic ; }`)
			}
			d := newDenied(b, rule)
			d.send(300)
			if f, ok := d.flow(); ok && f.Confilter == api.ConfilterDiscard {
				t.Errorf("a discard although %q: %+v", rule, f)
			}
			if n := b.Status().Totals.DiscardedPackets; n > 0 {
				t.Errorf("%d packets were discarded although %q", n, rule)
			}
		})
	}
}
