package express_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/scon-project/scon/test/bed/scontest"
)

// The history has the packets that were sent, of the machine and of their container.
func TestHistoryCountsTraffic(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	begin := time.Now()
	c := b.Incoming("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	n.Proceed(t, 2000)
	n.WantAll(t, "of the numbers")
	f := c.MustFlow()
	express := f.ExpressPackets[0] + f.ExpressPackets[1]
	for _, container := range []string{"", f.Container} {
		scontest.Eventually(t, "all packets of "+container, func() error {
			h, err := b.Daemon.History(container, begin)
			if err != nil {
				return err
			}
			_, sum := h.Sum()
			if sum.ExpressPackets < express || sum.ExpressBytes < 28*express || sum.RegularPackets == 0 {
				return fmt.Errorf("%+v, want %d packets express", sum, express)
			}
			for _, p := range h.Points {
				if p.At.Before(begin) || p.Seconds <= 0 {
					t.Errorf("a point of another time: %+v", p)
				}
			}
			return nil
		})
	}
	if _, err := b.Daemon.History("nobody", time.Time{}); err == nil {
		t.Error("an unknown container has a history")
	}
}
