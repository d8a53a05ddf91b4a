package hooks

import (
	"time"

	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/changes"
)

// scanInterval is the time between scans of all devices because some come and
// go: where many do, one scan serves dozens.
const scanInterval = 100 * time.Millisecond

// schedule decides when the devices are scanned.
type schedule struct {
	dirty    dirty
	topology bool // noted since the last scan
	urgent   bool
	settling bool // a scan is under way because of an urgent change
	scanned  time.Time
	due      time.Time // of a scan that can wait, zero if there is none
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
	s.topology, s.urgent, s.settling = false, false, s.urgent
	s.timer.Stop()
	return changed
}

// end says that a scan has ended. What was noted meanwhile needs another one.
func (s *schedule) end(err error) {
	s.settling = false
	if err != nil {
		s.dirty.all = true
	}
	switch {
	case s.urgent:
		s.scanIn(0)
	case s.topology:
		s.scanIn(scanInterval)
	}
}

// scanIn scans the devices after some time, or sooner if that is due.
func (s *schedule) scanIn(after time.Duration) {
	due := time.Now().Add(after)
	if s.due.IsZero() || due.Before(s.due) {
		s.due = due
		s.timer.Reset(max(0, after))
	}
}

// Due fires when the loop has to call Rescan.
func (h *Hooks) Due() <-chan time.Time { return h.schedule.timer.C }

// Note takes a change of the network. The loop calls Update after a burst.
func (h *Hooks) Note(c changes.Event) {
	if !c.Topology {
		return
	}
	s := &h.schedule
	s.topology, s.urgent = true, s.urgent || h.isUrgent(c)
	s.dirty.add(c)
}

// Update scans the devices if the changes that were noted require it, at once
// or a little later.
func (h *Hooks) Update() {
	switch s := &h.schedule; {
	case s.urgent:
		h.Rescan()
	case s.topology:
		s.scanIn(time.Until(s.scanned.Add(scanInterval)))
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
