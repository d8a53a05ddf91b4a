package express_test

import (
	"testing"
	"time"

	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/scontest"
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
