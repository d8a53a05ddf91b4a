// Package live compares two snapshots of the daemon: rates of packets and bytes, the
// reasons for regular packets, and changes in between.
package live

import (
	"cmp"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/api"
)

// Source is the daemon; *api.Client implements it.
type Source interface {
	Status() (api.Status, error)
	Flows(container string) ([]api.Flow, error)
}

// Snapshot is the daemon's state at a time.
type Snapshot struct {
	At     time.Time // of Status
	Status api.Status
	// Softirq is the processor time of this machine's softirqs since its start: the
	// kernel's work on packets, express and regular.
	Softirq time.Duration
	FlowsAt time.Time // a list of many takes time
	Flows   []api.Flow
}

// Take reads a snapshot.
func Take(s Source) (Snapshot, error) {
	status, err := s.Status()
	if err != nil {
		return Snapshot{}, err
	}
	at := time.Now()
	softirq, err := softirqTime()
	if err != nil {
		return Snapshot{}, err
	}
	flows, err := s.Flows("")
	return Snapshot{at, status, softirq, time.Now(), flows}, err
}

// View is what has happened between two snapshots. Rates are per second of the real
// interval between them.
type View struct {
	At      time.Time `json:"at"`         // of the later snapshot
	Seconds float64   `json:"interval_s"` // the interval, in seconds
	// Restarted means that another daemon answered than before; what it does not take over
	// counts from zero.
	Restarted bool   `json:"restarted"`
	PID       int    `json:"pid"`           // of the daemon
	State     string `json:"state"`         // as of `scon status`
	Why       string `json:"why,omitempty"` // why it is not active
	// DaemonCPU is the daemon's processor time, in percent of one CPU; in the first interval
	// of a restarted daemon its whole time so far.
	DaemonCPU float64 `json:"daemon_cpu_pct"`
	// SoftirqCPU is the processor time of this machine's softirqs, in percent of one CPU.
	SoftirqCPU float64 `json:"softirq_cpu_pct"`
	// SavedCPU is an estimate of what express has saved of it, in percent of one CPU: its
	// packets times 2.216 us, docs/web.md.
	SavedCPU float64 `json:"saved_cpu_pct_estimate"`
	Entries  int     `json:"entries"` // Conentries in the table
	Express  Rate    `json:"express"` // of all containers
	// Regular is without those at the uplinks.
	Regular     float64            `json:"regular_packets_per_s"`
	Discarded   float64            `json:"discarded_packets_per_s"` // that discards dropped
	Uplinks     map[string]float64 `json:"uplink_reasons_per_s"`    // regular packets at the uplinks
	Containers  []Container        `json:"containers"`              // ports of containers
	Connections []Connection       `json:"connections"`             // those with a Conentry
	Changes     []Change           `json:"changes"`                 // since the look before
}

// Rate is packets and bytes (from the IP header on) per second.
type Rate struct {
	Packets float64 `json:"packets_per_s"` // packets
	Bytes   float64 `json:"bytes_per_s"`   // bytes
}

// Container is a container's port. Its name is the name, ID or device, whichever is known.
type Container struct {
	Name     string  `json:"name"`                  // as the runtime names it
	ID       string  `json:"id"`                    // the runtime's identifier
	Dev      string  `json:"dev"`                   // its port on the host
	Bridge   string  `json:"bridge"`                // that the port is of; empty if it is routed
	Paused   bool    `json:"paused"`                // paused by `scon pause --container`
	Withheld string  `json:"withheld,omitempty"`    // why the settings keep it regular, absent if they do not
	Entries  int     `json:"entries"`               // Conentries of its connections
	Express  Rate    `json:"express"`               // in both directions
	Regular  float64 `json:"regular_packets_per_s"` // in both directions
	// Reasons are the regular packets per second by reason, without those that are 0.
	Reasons map[string]float64 `json:"reasons_per_s"`
	api.Origin
}

// Connection is a Conentry. Pairs are the original and the reply direction.
type Connection struct {
	api.Flow
	Express [2]Rate `json:"express"` // by direction, that of the first packet first
	// Regular is what conntrack has counted; absent if it does not count.
	Regular *[2]Rate `json:"regular,omitempty"`
}

// Between compares two snapshots; the earlier one may be the zero Snapshot, and then all
// rates are 0. A counter that is less than before has begun again at zero.
func Between(was, is Snapshot) View {
	v := View{
		At: is.At, PID: is.Status.PID, State: is.Status.State, Why: is.Status.Why, Entries: is.Status.Totals.Entries,
		Uplinks: map[string]float64{}, Containers: []Container{}, Connections: []Connection{}, Changes: []Change{},
	}
	var per perSecond
	if !was.At.IsZero() {
		v.Seconds = is.At.Sub(was.At).Seconds()
		per = perSecond(v.Seconds)
		v.Restarted = was.Status.PID != is.Status.PID || was.Status.StartedMS != is.Status.StartedMS
		v.Changes = changes(was, is)
	}
	a, b := &was.Status, &is.Status
	v.DaemonCPU = 100 * per.rate(b.CPUSeconds-a.CPUSeconds)
	if was.Status.PID != is.Status.PID && v.Restarted {
		v.DaemonCPU = 100 * per.rate(b.CPUSeconds)
	}
	v.Express = Rate{per.of(a.Totals.ExpressPackets, b.Totals.ExpressPackets), per.of(a.Totals.ExpressBytes, b.Totals.ExpressBytes)}
	v.SoftirqCPU = 100 * per.rate((is.Softirq - was.Softirq).Seconds())
	v.SavedCPU = 100 * v.Express.Packets * SavedPerPacket.Seconds()
	v.Regular = per.of(a.Totals.RegularPackets, b.Totals.RegularPackets)
	v.Discarded = per.of(a.Totals.DiscardedPackets, b.Totals.DiscardedPackets)
	per.reasons(v.Uplinks, a.Reasons, b.Reasons)
	v.containers(a, b, per)
	if per > 0 {
		per = perSecond(is.FlowsAt.Sub(was.FlowsAt).Seconds())
	}
	v.connections(was.Flows, is.Flows, per)
	return v
}

func (v *View) containers(was, is *api.Status, per perSecond) {
	before := make(map[string]*api.Container, len(was.Containers))
	for i := range was.Containers {
		before[portOf(&was.Containers[i])] = &was.Containers[i]
	}
	for i := range is.Containers {
		b := &is.Containers[i]
		a := before[portOf(b)]
		if a == nil {
			a = &api.Container{}
		}
		c := Container{
			Name: NameOf(b), ID: b.ID, Dev: b.Dev, Bridge: b.Bridge, Paused: b.Paused, Withheld: b.Withheld, Entries: b.Entries,
			Express: per.both(a.ExpressSent, b.ExpressSent).plus(per.both(a.ExpressReceived, b.ExpressReceived)),
			Regular: per.of(a.RegularPackets, b.RegularPackets),
			Reasons: map[string]float64{},
			Origin:  b.Origin,
		}
		per.reasons(c.Reasons, a.Reasons, b.Reasons)
		v.Containers = append(v.Containers, c)
	}
}

// portOf identifies a container's port: a device's name may be used again by another
// container.
func portOf(c *api.Container) string { return c.ID + " " + c.Dev }

// NameOf returns what a container is called: by its name, its ID, or its device.
func NameOf(c *api.Container) string { return cmp.Or(c.Name, c.ID, c.Dev) }

// Kept is what stands behind the name of a container that is paused, or that the settings
// keep regular, "" for any other.
func Kept(paused bool, withheld string) string {
	switch {
	case paused:
		return " (paused)"
	case withheld != "":
		return " (kept regular)"
	}
	return ""
}

// connection identifies a Conentry.
type connection struct {
	container, proto string
	orig             api.Tuple
}

func (v *View) connections(was, is []api.Flow, per perSecond) {
	before := make(map[connection]*api.Flow, len(was))
	for i := range was {
		before[connection{was[i].Container, was[i].Proto, was[i].Orig}] = &was[i]
	}
	v.Connections = make([]Connection, 0, len(is))
	for i := range is {
		b := is[i]
		a := before[connection{b.Container, b.Proto, b.Orig}]
		if a == nil || a.AgeMS > b.AgeMS {
			a = &api.Flow{} // a new one, maybe with the tuples of one that has ended
		}
		c := Connection{Flow: b}
		for dir := range c.Express {
			c.Express[dir] = Rate{per.of(a.ExpressPackets[dir], b.ExpressPackets[dir]), per.of(a.ExpressBytes[dir], b.ExpressBytes[dir])}
		}
		c.Regular = per.regular(a, &b)
		v.Connections = append(v.Connections, c)
	}
}

// perSecond is an interval in seconds; 0 makes all rates 0.
type perSecond float64

func (s perSecond) rate(n float64) float64 {
	if s <= 0 {
		return 0
	}
	return n / float64(s)
}

// of returns the rate of a counter.
func (s perSecond) of(was, is uint64) float64 {
	if is < was {
		was = 0
	}
	return s.rate(float64(is - was))
}

func (s perSecond) both(was, is api.Count) Rate {
	return Rate{s.of(was.Packets, is.Packets), s.of(was.Bytes, is.Bytes)}
}

func (s perSecond) reasons(into map[string]float64, was, is map[string]uint64) {
	for reason, n := range is {
		if r := s.of(was[reason], n); r > 0 {
			into[reason] = r
		}
	}
}

// regular returns conntrack's rates. A connection that has just become a Conentry was
// regular before: what it has counted then is of no interval, so its rate is unknown.
func (s perSecond) regular(was, is *api.Flow) *[2]Rate {
	if is.RegularPackets == nil || is.RegularBytes == nil || was.RegularPackets == nil || was.RegularBytes == nil {
		return nil
	}
	var both [2]Rate
	for dir := range both {
		both[dir] = Rate{s.of(was.RegularPackets[dir], is.RegularPackets[dir]), s.of(was.RegularBytes[dir], is.RegularBytes[dir])}
	}
	return &both
}

func (r Rate) plus(o Rate) Rate { return Rate{r.Packets + o.Packets, r.Bytes + o.Bytes} }

// Share returns which part of a container's packets goes express, 0 without packets.
func (c *Container) Share() float64 {
	if all := c.Express.Packets + c.Regular; all > 0 {
		return c.Express.Packets / all
	}
	return 0
}

// regular returns conntrack's packets of both directions, -1 if it does not count.
func (c *Connection) regular() float64 {
	if c.Regular == nil {
		return -1
	}
	return c.Regular[0].Packets + c.Regular[1].Packets
}

// Total returns the sum of both directions.
func (c *Connection) Total() Rate { return c.Express[0].plus(c.Express[1]) }

// MostFrequent returns the reasons, the most frequent first.
func MostFrequent(reasons map[string]float64) []string {
	names := make([]string, 0, len(reasons))
	for name := range reasons {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b))
	})
	return names
}
