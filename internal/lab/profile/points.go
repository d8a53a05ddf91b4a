package profile

import (
	"fmt"
	"strings"
)

// place is where a point is, as the names of layers have it.
type place string

const (
	inContainer place = "container"
	atHost      place = "host" // hooks of the host
	atPort      place = "port" // devices of the host
	atBridge    place = "bridge"
	atWire      place = "wire"
	outside     place = "edge"
)

var waypointNames = map[waypointWaypoint]string{
	waypointWaypointWAYPOINT_QUEUE:   "queue",
	waypointWaypointWAYPOINT_START:   "start",
	waypointWaypointWAYPOINT_RX:      "rx",
	waypointWaypointWAYPOINT_XMIT:    "xmit",
	waypointWaypointWAYPOINT_RECEIVE: "receive",
}

// site is a network namespace that ways lead through.
type site struct {
	netns string // name or path
	place place  // of its hooks, and of devices that are not in devices
	// devices by index, with their places.
	devices map[uint32]place
	// spans between the waypoints of each hook; a hook without any has one
	// waypoint only, where a way begins or ends.
	spans map[hook][]span
}

// point is a waypoint that a packet has passed, by what it means.
type point struct {
	place place
	name  string // "forward", "queue"
	site  *site  // of a hook, else nil
	hook  hook
	nth   int // of the hook's waypoints, from 0
}

func (p point) String() string { return string(p.place) + " " + p.name }

// chart tells steps what they mean.
type chart map[uint32]*site // by the namespace's inode

// points names the steps of a way. The n-th step at the same hook is that
// hook's n-th waypoint.
func (c chart) points(steps []step) []point {
	points := make([]point, len(steps))
	for i, s := range steps {
		at := c[s.Net]
		switch {
		case at == nil:
			points[i] = point{place: "elsewhere", name: waypointNames[s.Waypoint]}
		case s.Waypoint == waypointWaypointWAYPOINT_HOOK:
			p := point{place: at.place, name: hookNames[hook(s.At)], site: at, hook: hook(s.At)}
			if i > 0 && points[i-1].site == at && points[i-1].hook == p.hook {
				p.nth = points[i-1].nth + 1
			}
			points[i] = p
		default:
			where, ok := at.devices[s.At]
			if !ok {
				where = at.place
			}
			points[i] = point{place: where, name: waypointNames[s.Waypoint]}
		}
	}
	return points
}

// signature tells ways apart: all points of a way.
func signature(points []point) string {
	var text strings.Builder
	for _, p := range points {
		fmt.Fprintf(&text, "%v %d;", p, p.nth)
	}
	return text.String()
}
