package profile

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/link"
)

// place is the location of a point, as in the names of layers.
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

// site is a network namespace that paths pass through.
type site struct {
	netns string // name or path
	place place  // of its hooks, and of devices that are not in devices
	// devices by index, with their places.
	devices map[uint32]place
	// spans between the waypoints of each hook. A hook without spans has a single
	// waypoint, where a path begins or ends.
	spans map[hook][]span
}

// point is a waypoint that a packet has passed, with its location.
type point struct {
	place place
	name  string // "forward", "queue"
	site  *site  // of a hook, else nil
	hook  hook
	nth   int // index among the hook's waypoints
}

func (p point) String() string { return string(p.place) + " " + p.name }

// chart maps steps to points.
type chart map[uint32]*site // by the namespace's inode

// points returns the points of a path. The n-th step at the same hook is that
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

// signature identifies a path by all its points.
func signature(points []point) string {
	var text strings.Builder
	for _, p := range points {
		fmt.Fprintf(&text, "%v %d;", p, p.nth)
	}
	return text.String()
}

// follows reports whether a packet can pass b directly after a. From the output hook it
// goes to a device of its namespace, and to the prerouting and input hooks it comes from
// one. Otherwise two packets have had one address.
func follows(a, b step) bool {
	from, to := hookOf(a), hookOf(b)
	switch {
	case from == link.NetfilterInetLocalOut:
		return a.Net == b.Net && (to == link.NetfilterInetLocalOut || to == link.NetfilterInetPostRouting || b.Waypoint == waypointWaypointWAYPOINT_QUEUE)
	case to == link.NetfilterInetPreRouting:
		return from == to || a.Waypoint == waypointWaypointWAYPOINT_RECEIVE
	case to == link.NetfilterInetLocalIn:
		return from == to || from == link.NetfilterInetPreRouting
	default:
		return to != link.NetfilterInetLocalOut
	}
}

// hookOf returns the hook of a step, or noHook of one at a device.
func hookOf(s step) hook {
	if s.Waypoint != waypointWaypointWAYPOINT_HOOK {
		return noHook
	}
	return hook(s.At)
}
