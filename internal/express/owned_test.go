package express_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/host/nstest"
	"github.com/scon-project/scon/internal/lab"
	"github.com/scon-project/scon/internal/lab/scontest"
)

// A table of nftables that goes with its owner, which is not announced, takes what it let
// pass along: here the mark without which another table drops.
func TestOwnedTable(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	b.Sh(lab.Device, `
		nft add table ip unmarked
		nft add chain ip unmarked forward { type filter hook forward priority 0 ; }
		nft add rule ip unmarked forward iifname docker0 meta mark != 7 drop`)
	own := func() (end func()) {
		return nstest.Owner(t, b.Node(lab.Device), `table ip marks { flags owner; chain p { type filter hook prerouting priority 0; iifname docker0 meta mark set 7; }; }`)
	}
	end := own()
	c := b.Outgoing("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	c.WaitExpress(func() error { _, err := c.Server.Write([]byte("x")); return err })
	end()
	stopsWithin(t, n, time.Now(), scontest.Heartbeat)

	own()
	n.Proceed(t, 100)
	c.WaitExpressOriginal()
}

// stopsWithin waits until no packet arrives any more, and checks when the last one that did
// was sent, seen from a change.
func stopsWithin(t *testing.T, n *scontest.Numbers, since time.Time, bound time.Duration) {
	t.Helper()
	scontest.Eventually(t, "packets are dropped", func() error {
		before := n.Arrived.Load()
		sent := n.Sent.Load()
		time.Sleep(bound / 2)
		if now := n.Arrived.Load(); now != before || n.Sent.Load() == sent {
			return errors.New("packets arrive")
		}
		return nil
	})
	late := time.Unix(0, n.Latest.Load()).Sub(since)
	t.Logf("the last packet to pass was sent %v after the change", late)
	if late > bound {
		t.Errorf("longer than %v", bound)
	}
}
