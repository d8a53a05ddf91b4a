package contable_test

import (
	"testing"
	"time"

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
			b.SetLease(e, c.to, "a test")
			for _, h := range halves {
				if h.Lease != uint32(c.to/time.Millisecond) || (h.Generation == 1) != c.valid {
					t.Errorf("lease %d, generation %d", h.Lease, h.Generation)
				}
			}
			if b.ShortenLeases("read"); e.Lease != time.Second || e.Bound != "read" {
				t.Errorf("lease %v by %q", e.Lease, e.Bound)
			}
		})
	}
}
