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
	urgent   bool // the next scan cannot wait
	open     bool // something was noted before which nothing may go express
	settling bool // and a scan is under way because of that
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
	s.scanning, s.settling, s.open, s.urgent = true, s.open, false, false
	s.timer.Stop()
	return changed
}

// end says that a scan has ended.
func (s *schedule) end() { s.scanning, s.settling = false, false }

// again has a scan repeated that has taken up nothing.
func (s *schedule) again() {
	s.open = s.open || s.settling
	s.urgent, s.dirty.all = s.urgent || s.open, true
	s.scanIn(failedInterval)
}

// mustScan has everything scanned before anything goes express.
func (s *schedule) mustScan() { s.dirty.all, s.urgent, s.open = true, true, true }

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
	s.open = s.open || h.unsettles(c)
	if s.urgent = s.urgent || s.open || h.isUrgent(c); s.urgent {
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

// Unsettled reports whether nothing may go express until a scan that is due or under way has
// taken up what has changed.
func (h *Hooks) Unsettled() bool { return h.schedule.open || h.schedule.settling }

// Settled reports whether the last scan has taken up all that was noted.
func (h *Hooks) Settled() bool { return h.schedule.due.IsZero() && !h.schedule.scanning }

// isUrgent reports whether packets may be forwarded wrongly until the devices
// have been scanned. No packet goes express by a device that is new or gone.
func (h *Hooks) isUrgent(c changes.Event) bool {
	if c.Kind != changes.Link && c.Kind != changes.Filter {
		return true
	}
	if c.Ifindex == 0 {
		return c.Kind == changes.Filter
	}
	return !c.Gone && h.knows(c.Ifindex)
}

// unsettles reports whether nothing may go express before: what packets must pass may have
// changed. A route, or a port that goes down, has a scope, or raises the generation.
func (h *Hooks) unsettles(c changes.Event) bool {
	switch c.Kind {
	case changes.Overrun:
		return true
	case changes.Filter, changes.Link:
		all := c.Stale && !c.Gone && c.Scope == changes.Scope{}
		// A device that was not known may be one that is being hooked.
		return all && (c.Ifindex == 0 || h.schedule.scanning || h.knows(c.Ifindex))
	}
	return false
}

// knows reports whether packets of containers may pass a device.
func (h *Hooks) knows(ifindex int) bool {
	return h.isHooked(ifindex) || h.steering.watches(ifindex) || h.path.passes(ifindex)
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
