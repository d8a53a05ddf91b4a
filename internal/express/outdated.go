package express

import (
	"slices"
	"time"

	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
)

// lookInterval is how much time is between looks at all devices for the sake of
// those that come and go: where many do, one look is for dozens.
const lookInterval = 100 * time.Millisecond

// outdated is what is known to have changed since the latest look at the devices.
type outdated struct {
	all     bool // anything may have
	devices map[int]bool
}

func (o *outdated) add(c changes.Event) {
	if o.devices == nil {
		o.devices = make(map[int]bool)
	}
	switch {
	case c.Ifindex != 0:
		o.devices[c.Ifindex] = true
	case c.Kind != changes.Link: // else a namespace's number
		o.all = true
	}
}

// has tells whether a port, or its bridge, has to be looked at.
func (o outdated) has(p discover.Port) bool {
	return o.all || o.devices[p.Index] || o.devices[p.Bridge.Index]
}

// isUrgent tells whether packets may go a wrong way until the devices have been
// looked at. None goes express by a device that is new or gone.
func (d *Daemon) isUrgent(c changes.Event) bool {
	if c.Kind != changes.Link && c.Kind != changes.Filter {
		return true
	}
	if c.Ifindex == 0 {
		return c.Kind == changes.Filter
	}
	return !c.Gone && d.passes(c.Ifindex)
}

// passes tells whether packets of containers pass a device, as far as is known.
func (d *Daemon) passes(ifindex int) bool {
	if isPort, isUplink := d.hooked(ifindex); isPort || isUplink || d.devices.bridges[ifindex] != nil {
		return true
	}
	is := func(r rules.Device) bool { return r.Index == ifindex }
	for _, inside := range d.policy.inside {
		if slices.ContainsFunc(inside, is) {
			return true
		}
	}
	return slices.ContainsFunc(d.policy.outside, is)
}
