package hooks

import (
	"time"

	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/changes"
)

// scanInterval is the time between scans of all devices because some come and
// go: where many do, one scan serves dozens.
const scanInterval = 100 * time.Millisecond

// failedInterval is the time from a scan that failed to the next one.
const failedInterval = time.Second

// schedule decides when the devices are scanned.
type schedule struct {
	dirty    dirty
	urgent   bool // noted since a scan began
	settling bool // a scan is under way because of an urgent change
	scanning bool
	scanned  time.Time
	due      time.Time // of the next scan, zero if none is needed
	timer    *time.Timer
}

func newSchedule() schedule {
	s := schedule{timer: time.NewTimer(time.Hour)}
	s.timer.Stop()
	return s
}

// begin returns what has changed since the last scan, when one begins.
func (s *schedule) begin() (changed dirty) {
	changed = s.dirty
	s.dirty, s.due, s.scanned = dirty{}, time.Time{}, time.Now()
	s.scanning, s.settling, s.urgent = true, s.urgent, false
	s.timer.Stop()
	return changed
}

// end says that a scan has ended. One that failed is repeated.
func (s *schedule) end(err error) {
	if err != nil {
		s.dirty.all, s.urgent = true, s.urgent || s.settling
		s.scanIn(failedInterval)
	}
	s.scanning, s.settling = false, false
}

// scanIn has the devices scanned after some time, or sooner if that is due.
func (s *schedule) scanIn(after time.Duration) {
	due := time.Now().Add(after)
	if s.due.IsZero() || due.Before(s.due) {
		s.due = due
		s.timer.Reset(max(0, after))
	}
}

// Due fires when the loop has to call Rescan.
func (h *Hooks) Due() <-chan time.Time { return h.schedule.timer.C }

// Note takes a change of the network, and has the devices scanned by Due if it requires
// that: at once or a little later.
func (h *Hooks) Note(c changes.Event) {
	if !c.Topology {
		return
	}
	s := &h.schedule
	s.dirty.add(c)
	if s.urgent = s.urgent || h.isUrgent(c); s.urgent {
		s.scanIn(0)
	} else {
		s.scanIn(time.Until(s.scanned.Add(scanInterval)))
	}
}

// Update scans the devices now if an urgent change was noted.
func (h *Hooks) Update() {
	if h.schedule.urgent {
		h.Rescan()
	}
}

// Unsettled reports whether packets may be forwarded wrongly until a scan of the devices
// that is due or under way has taken up what has changed.
func (h *Hooks) Unsettled() bool { return h.schedule.urgent || h.schedule.settling }

// isUrgent reports whether packets may be forwarded wrongly until the devices
// have been scanned. No packet goes express by a device that is new or gone.
func (h *Hooks) isUrgent(c changes.Event) bool {
	if c.Kind != changes.Link && c.Kind != changes.Filter {
		return true
	}
	if h.schedule.scanning && c.Stale && !c.Gone {
		return true // its device may be one that is being hooked
	}
	if c.Ifindex == 0 {
		return c.Kind == changes.Filter
	}
	return !c.Gone && (h.isHooked(c.Ifindex) || h.steering.watches(c.Ifindex) || h.path.passes(c.Ifindex))
}

// dirty is what has changed since the last scan of the devices.
type dirty struct {
	all     bool // anything may have
	more    bool // more than devices has: routes, filters
	devices map[int]bool
}

func (d *dirty) add(c changes.Event) {
	if d.devices == nil {
		d.devices = make(map[int]bool)
	}
	d.more = d.more || c.Kind != changes.Link
	switch {
	case c.Ifindex != 0:
		d.devices[c.Ifindex] = true
	case c.Kind != changes.Link: // else a namespace's number
		d.all = true
	}
}

// has reports whether a port, or its bridge, has to be scanned.
func (d dirty) has(p discover.Port) bool {
	return d.all || d.devices[p.Index] || d.devices[p.Bridge.Index]
}
