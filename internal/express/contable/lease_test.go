package contable_test

import (
	"math"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// A lease may be made longer or shorter while it runs. A longer one brings back no
// decision whose lease has ended, or may end before it is set.
func TestSetLease(t *testing.T) {
	for name, c := range map[string]struct {
		age   uint32 // jiffies since the decision
		to    time.Duration
		valid bool
	}{
		"longer, fresh":             {100, 30 * time.Second, true},
		"longer, about to end":      {600, 30 * time.Second, false},
		"longer, ended":             {5000, 30 * time.Second, false},
		"longer, since a heartbeat": {^uint32(0), 30 * time.Second, false},
		"the same, ended":           {5000, time.Second, true},
		"shorter":                   {600, 100 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options())
			e := b.compose(7, masqueraded(1), true, start)
			b.settings.Heartbeat = 100000
			halves := []*datapath.Half{b.half(masqueraded(1).Orig, 7), b.half(masqueraded(1).Reply, 0)}
			for _, h := range halves {
				h.Generation, h.OutDev, h.LeaseFrom = 1, 3, 100000-c.age
			}
			b.SetLease(e, c.to)
			for _, h := range halves {
				if h.Lease != uint32(c.to/time.Millisecond) || (h.Generation == 1) != c.valid {
					t.Errorf("lease %d, generation %d", h.Lease, h.Generation)
				}
			}
			if e.Lease() != c.to {
				t.Errorf("lease %v", e.Lease())
			}
		})
	}
}

// Whether packets or time end a lease is found by the rate of the busier direction.
func TestEndsByPackets(t *testing.T) {
	for name, c := range map[string]struct {
		conn        conntrack.Conn
		limit       uint32
		first, next uint64 // packets at a sweep, and a second later
		perSecond   float64
		ends        bool
	}{
		"silent":              {masqueraded(1), 65536, 5000, 5000, 0, false},
		"TCP, slow":           {masqueraded(1), 65536, 0, 500, 500. / 4096, false}, // the lease lasts 8 s
		"TCP, fast":           {masqueraded(1), 65536, 0, 65536, 16, true},
		"TCP, a low limit":    {masqueraded(1), 16, 0, 4, .25, true},
		"UDP, fast":           {published(1), 65536, 0, 65536, 1, true},
		"UDP, slow":           {published(1), 65536, 0, 4096, 1. / 16, false},
		"the counter's begin": {masqueraded(1), 65536, 1<<32 - 4096, 1 << 32, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			o.LeasePackets = c.limit
			b := newBed(t, o)
			e := b.compose(7, c.conn, true, start)
			b.SetLease(e, 8*time.Second)
			b.half(c.conn.Orig, 7).Packets = c.first
			b.Sweep(start)
			b.half(c.conn.Orig, 7).Packets = c.next
			b.Sweep(start.Add(time.Second))
			if rate, ends := b.EndsByPackets(e); ends != c.ends || math.Abs(rate-c.perSecond) > .001 {
				t.Errorf("%v leases a second, by packets %v", rate, ends)
			}
		})
	}
}
