package daemon_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/lab"
)

// Packets of a connection do not overtake each other, neither into a container
// nor out, while they change ways all the time. They travel in bursts, so that
// many are between two softirqs at any moment.
func TestOrder(t *testing.T) {
	t.Parallel()
	for name, connect := range directions {
		t.Run(name, func(t *testing.T) {
			b := newExpress(t, layout{offload: true, config: func(c *config.Config) { c.LeasePackets = 50 }})
			for _, node := range []string{lab.Edge, lab.Container(1)} {
				b.sh(node, "ethtool -K eth0 tx-udp-segmentation off")
			}
			c := connect(b, "udp", 1)
			const burst, pause = 32, 500 * time.Microsecond
			requests := sendNumbers(t, c.client, c.server, burst, pause)
			replies := sendNumbers(t, c.server, c.client, burst, pause)
			proceed := func() {
				t.Helper()
				requests.proceed(t, 2000)
				replies.proceed(t, 2000)
			}
			c.waitExpress(nil) // admission
			before := c.mustFlow().ExpressPackets
			proceed()
			proceed() // leases end
			after := c.mustFlow().ExpressPackets
			for dir := range after {
				if after[dir]-before[dir] < 2000 {
					t.Errorf("direction %d: %d packets went express", dir, after[dir]-before[dir])
				}
			}
			changes := map[string]func(i int) error{
				"pause":  func(int) error { return b.daemon.Pause("") },
				"resume": func(int) error { return b.daemon.Resume("") },
				"flush":  func(int) error { _, err := b.daemon.Flush(""); return err },
				"rules": func(i int) error {
					b.sh(lab.Device, fmt.Sprintf("nft add table ip order%d", i))
					return nil
				},
			}
			for i := range 5 {
				for _, what := range []string{"rules", "pause", "resume", "flush"} {
					if err := changes[what](i); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					proceed()
				}
			}
			c.waitExpress(nil)
			requests.wantAll(t, "requests")
			replies.wantAll(t, "replies")
			b.wantNoInvalid()
		})
	}
}
