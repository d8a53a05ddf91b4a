package express_test

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Datagrams that GRO merges at the uplink, as fragments or as a list, go express as one
// packet and arrive as they were sent.
func TestUDPGROForwarding(t *testing.T) {
	t.Parallel()
	for feature, merges := range map[string]bool{"gro": false, "rx-udp-gro-forwarding": true, "rx-gro-list": true} {
		t.Run(feature, func(t *testing.T) {
			b := scontest.NewExpress(t, scontest.Layout{Offload: true})
			// The segments of a burst then arrive at once, one by one.
			b.Sh(lab.Edge, "ethtool -K eth0 tx-udp-segmentation off")
			b.Sh(lab.Device, "ethtool -K eth0 gro on "+feature+" on")
			c := b.Incoming("udp", 1).GoExpress()
			before := c.MustFlow().ExpressPackets
			n := scontest.SendNumbers(t, c.Client, c.Server, 16, time.Millisecond)
			n.Proceed(t, 1600)
			n.WantAll(t, "with "+feature)
			merged := c.MustFlow().ExpressPackets[0] - before[0]
			sent := n.Sent.Load()
			t.Logf("%d datagrams went as %d packets", sent, merged)
			if merged == 0 || (merged < sent/2) != merges {
				t.Errorf("%d datagrams went express as %d packets; are they merged: want %v", sent, merged, merges)
			}
			b.WantNoInvalid()
		})
	}
}

// Segments of BIG TCP, whose length has no room in the IP header, go express as all others.
func TestBigTCP(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{Offload: true})
	const size = 180 << 10
	lacks := false // the kernel says nothing of such a size then
	for _, node := range []string{lab.Container(1), lab.Device, lab.Edge} {
		if err := b.Do(node, func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if err == nil && l.Type() != "loopback" && l.Attrs().Name != "lo" {
					lacks = lacks || l.Attrs().GSOIPv4MaxSize == 0
					err = errors.Join(netlink.LinkSetGSOIPv4MaxSize(l, size), netlink.LinkSetGROIPv4MaxSize(l, size))
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if lacks {
		t.Skip("missing: BIG TCP over IPv4, Linux 6.3")
	}
	c := b.Outgoing("tcp", 1).GoExpress()
	flow := c.MustFlow()
	sent := c.Exchange(256 << 20)
	now := c.MustFlow()
	var express, bytes uint64
	for dir := range sent {
		express += now.ExpressPackets[dir] - flow.ExpressPackets[dir]
		bytes += now.ExpressBytes[dir] - flow.ExpressBytes[dir]
	}
	c.WantShare(flow.ExpressBytes, now.ExpressBytes, sent)
	c1, _ := b.Container(1)
	if n := c1.Reasons["malformed"]; n > 0 {
		t.Errorf("%d packets were malformed", n)
	}
	t.Logf("%d packets of %d bytes on average", express, bytes/express)
}
