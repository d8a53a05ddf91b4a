package express_test

import (
	"math"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/live"
	"github.com/scon-project/scon/test/bed/scontest"
)

// The rates of two looks, times the interval, are the packets that went in between.
func TestLiveCountsTraffic(t *testing.T) {
	t.Parallel()
	b := scontest.NewExpress(t, scontest.Layout{})
	c := b.Incoming("udp", 1).GoExpress()
	n := scontest.SendNumbers(t, c.Client, c.Server, 1, time.Millisecond)
	n.Proceed(t, 100)
	was, err := live.Take(b.Daemon)
	if err != nil {
		t.Fatal(err)
	}
	before := n.Sent.Load()
	n.Proceed(t, 1000)
	is, err := live.Take(b.Daemon)
	if err != nil {
		t.Fatal(err)
	}
	sent := float64(n.Sent.Load() - before)
	v := live.Between(was, is)
	f := c.MustFlow()
	var of *live.Connection
	for i := range v.Connections {
		if v.Connections[i].Orig == f.Orig {
			of = &v.Connections[i]
		}
	}
	if of == nil {
		t.Fatalf("no connection %v among %d", f.Orig, len(v.Connections))
	}
	counted := (of.Express[0].Packets + of.Express[1].Packets) * is.FlowsAt.Sub(was.FlowsAt).Seconds()
	regular := v.Containers[0].Regular * v.Seconds
	// Packets in flight, and those between the two requests of a look, are at either side.
	if few := sent/10 + 20; math.Abs(counted+regular-sent) > few {
		t.Errorf("%v packets were sent, %.1f counted express and %.1f regular", sent, counted, regular)
	}
	if counted < 900 {
		t.Errorf("%.1f packets express", counted)
	}
}
