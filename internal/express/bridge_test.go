package express_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// Qdiscs and filters at the bridge itself see each packet of its containers.
func TestQdiscAtBridge(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	in, out := b.Incoming("udp", 1).GoExpress(), b.Outgoing("udp", 1).GoExpress()
	b.Sh(lab.Device, "tc qdisc add dev docker0 root handle 1: tbf rate 100mbit burst 64k latency 400ms")
	const count = "tc -s qdisc show dev docker0 root"
	scontest.Eventually(t, "packets pass the qdisc", func() error {
		seen := packets(b, count)
		in.MustPing(50)
		out.MustPing(50)
		if seen = packets(b, count) - seen; seen < 100 {
			return fmt.Errorf("%d of 100 passed it", seen)
		}
		return nil
	})
	b.Sh(lab.Device, "tc qdisc del dev docker0 root")
	in.GoExpress()
	out.GoExpress()
	b.WantNoInvalid()
}

// A filter at the bridge, which has to see every packet, is not skipped by
// those of its containers.
func TestFilterAtBridge(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	out := b.Outgoing("udp", 1).GoExpress()
	for _, side := range []string{"ingress", "egress"} {
		b.Sh(lab.Device, `
			tc qdisc replace dev docker0 clsact
			tc filter add dev docker0 `+side+` protocol ip prio 7 u32 match u32 0 0 classid 1:1`)
		scontest.Eventually(t, "veth1 is skipped", func() error {
			if s := b.Status().Skipped; len(s) != 1 || s[0].Dev != "veth1" || !strings.Contains(s[0].Reason, "docker0 has: u32 filter, pref 7") {
				return fmt.Errorf("skipped: %+v", s)
			}
			return nil
		})
		out.WaitGone()
		out.MustPing(10)
		b.Sh(lab.Device, "tc qdisc del dev docker0 clsact")
		b.WaitHooked(1)
		out.GoExpress()
	}
}
