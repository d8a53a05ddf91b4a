package express_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// While the hooks are removed, datagrams go on and SCON loses and doubles none, also at a
// bridge port that sends packets back (hairpin): no token gets into the bridge.
func TestRemoveUnderTraffic(t *testing.T) {
	t.Parallel()
	for _, clsact := range []bool{false, true} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("clsact %v, killed %v", clsact, killed), func(t *testing.T) {
				b := scontest.New(t, scontest.Layout{Clsact: clsact})
				b.Sh(lab.Device, `
					bridge link set dev veth1 hairpin on
					nft add table bridge tokens
					nft add chain bridge tokens prerouting { type filter hook prerouting priority -300 ; }
					nft add counter bridge tokens seen
					nft add rule bridge tokens prerouting iifname veth1 ip saddr `+lab.EdgeAddr.String()+` counter name seen`)
				b.Up()
				c := b.Outgoing("udp", 1).GoExpress()
				streams := []*scontest.Numbers{
					scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond),
					scontest.SendNumbers(t, c.Server, c.Client, 1, time.Millisecond),
				}
				proceed := func(more uint64) {
					for _, n := range streams {
						n.Proceed(t, more)
					}
				}
				proceed(500)
				if killed {
					b.Daemon.Kill()
					if err := b.Clean(); err != nil {
						t.Fatal(err)
					}
				} else {
					b.Daemon.Down()
				}
				proceed(100)
				wantSettled(b, streams)
				if seen := b.Sh(lab.Device, "nft list counter bridge tokens seen"); !strings.Contains(seen, "packets 0 ") {
					t.Errorf("packets for the container came into the bridge from its own port:\n%s", seen)
				}
			})
		}
	}
}

// wantSettled stops streams and waits until all their datagrams have arrived, each once,
// but for those that the kernel drops at a device while a clsact qdisc comes or goes.
func wantSettled(b *scontest.Bed, streams []*scontest.Numbers) {
	b.T.Helper()
	for _, n := range streams {
		_ = n.StopSend() // the cleanup reports the error
	}
	scontest.Eventually(b.T, "all datagrams arrive", func() error {
		missing := 0
		for _, n := range streams {
			missing += int(n.Sent.Load()) - int(n.Arrived.Load())
		}
		dropped := 0
		if b.Clsact {
			dropped = droppedSending(b)
		}
		if missing > dropped {
			return fmt.Errorf("%d are missing, and the devices dropped %d", missing, dropped)
		}
		return nil
	})
	for i, n := range streams {
		b.T.Logf("direction %d: %d datagrams sent, %d arrived", i, n.Sent.Load(), n.Arrived.Load())
		if doubled := n.Overtaken.Load(); doubled != 0 {
			b.T.Errorf("direction %d: %d datagrams were doubled or overtaken", i, doubled)
		}
	}
}

// droppedSending counts packets that the gateway's devices dropped as they sent them.
func droppedSending(b *scontest.Bed) (n int) {
	b.T.Helper()
	var devices []struct {
		Stats struct {
			TX struct{ Dropped int } `json:"tx"`
		} `json:"stats64"`
	}
	if out := b.Sh(lab.Device, "ip -s -j link show"); json.Unmarshal([]byte(out), &devices) != nil {
		b.T.Fatal(out)
	}
	for _, d := range devices {
		n += d.Stats.TX.Dropped
	}
	return n
}
