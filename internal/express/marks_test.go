package express_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/scon-project/scon/test/bed/lab"
	"github.com/scon-project/scon/test/bed/scontest"
)

// countDown are rules by which each packet of a container to a port leaves the connection with
// another mark, from first on, and the one that meets the last is dropped.
func countDown(port uint16, first, steps int) string {
	var b strings.Builder
	match := fmt.Sprintf("nft add rule ip count f ip saddr 172.17.0.2 udp dport %d ct mark", port)
	for i := range steps {
		fmt.Fprintf(&b, "%s %d ct mark set %d accept\n", match, first+i, first+i+1)
	}
	return fmt.Sprintf("nft add table ip count\nnft add chain ip count f { type filter hook forward priority -5 ; }\n%s%s %d drop", &b, match, first+steps)
}

// A connection whose packets change its mark stays regular, so that each of them does; also one
// that conntrack is told to give such a mark. One whose mark they leave as it is goes express.
func TestMarkOfEachPacket(t *testing.T) {
	t.Parallel()
	const steps = 60
	b := scontest.NewExpress(t, scontest.Layout{})
	wantMark := func(c *scontest.Connection, want int) error {
		listed := b.Sh(lab.Device, fmt.Sprintf("conntrack -L -p udp --dport %d 2>&1", scontest.PortOf(c.Server.LocalAddr())))
		if !strings.Contains(listed, fmt.Sprintf("mark=%d ", want)) {
			return fmt.Errorf("%s", listed)
		}
		return nil
	}
	c, other := b.Outgoing("udp", 1), b.Outgoing("udp", 1)
	b.Sh(lab.Device, countDown(scontest.PortOf(c.Server.LocalAddr()), 0, steps))
	c.MustPing(steps)
	if err := wantMark(c, steps); err != nil {
		t.Error(err)
	}
	b.Sh(lab.Device, "nft delete table ip count")

	b.Sh(lab.Device, countDown(scontest.PortOf(other.Server.LocalAddr()), 1000, steps))
	other.GoExpress()
	b.Sh(lab.Device, "conntrack --update --proto udp --orig-src 172.17.0.2 --mark 1000")
	scontest.Eventually(t, "each packet changes the mark", func() error {
		err := wantMark(other, 1000+steps)
		if err != nil {
			other.MustPing(1)
		}
		return err
	})
}
