// Package hooks keeps SCON's programs where they belong: on the ports of
// containers and on the uplinks, between the programs of others, and only where
// express packets skip nothing that they must pass.
//
// Hooks owns what is attached where, and what is known of the devices on the
// regular path. It belongs to the daemon's loop: no other goroutine may call its
// methods. What waits for the kernel runs outside the loop by Options.GoOn. It learns of changes by Note and scans the devices once for a
// burst; Poll finds what the kernel does not announce.
package hooks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// Options say what to hook, and what the loop does for Hooks. All functions are
// required; Hooks calls them in the loop, except for Identify.
type Options struct {
	Datapath *datapath.Datapath
	// Bridges and Uplinks are those of discover.Options.
	Bridges, Uplinks []string
	// Regular selects what stays regular.
	Regular []config.Selector
	Logger  *slog.Logger

	// Identify finds the container behind a port. It may take seconds and is
	// called by several goroutines.
	Identify func(context.Context, discover.Port) discover.Container
	// Owner is the container that a device was made for, if that is known.
	Owner func(dev string) (discover.Container, bool)
	// TouchesTunnel finds a rule that judges single packets and that packets of
	// a UDP port, of a VXLAN device, may reach.
	TouchesTunnel func(t rules.Tunnel) (rules.Rule, bool)

	// NewGeneration makes every decision stale.
	NewGeneration func(reason string)
	// HasConentries reports whether a decision about packets to a port may exist.
	HasConentries func(ifindex int) bool
	// FiltersChanged makes every decision stale, and the programs inert until
	// the loop has gone on.
	FiltersChanged func(reason string)
	// PortThere says that a port is about to be hooked.
	PortThere func(ifindex int)
	// PortGone says that a port is no longer hooked, or could not be.
	PortGone func(ifindex int)
	// DevicesChanged says that rules may name other devices for packets of
	// containers than before, or that Asks has changed.
	DevicesChanged func()
	// GoOn runs what takes long outside the loop, which goes on meanwhile: it calls any
	// method but Scan, Rescan, Update, Poll and SetContainer.
	GoOn func(wait func())
}

// deviceRemoved is logged where a device has just been removed. The kernel
// announces that, too, and the event unhooks it.
const deviceRemoved = "device removed; its event follows"

// Hooks is what is hooked.
type Hooks struct {
	opts    Options
	ports   map[int]*Port
	uplinks map[int]discover.Uplink
	skipped []discover.Skipped
	// unhooked are those of them that should be hooked, but could not be.
	unhooked []discover.Skipped
	blocked  map[int]string    // what keeps ports from being hooked, as last read; "" is nothing
	qdiscs   map[int]string    // as discover.Topology has them
	asks     discover.Question // the same
	// pastRegular counts regular packets of ports that are no longer hooked.
	pastRegular uint64

	scanner  *discover.Scanner
	attacher attacher
	delivery delivery
	path     path
	ageing   ageing
	idle     time.Duration // as discover.Topology.IdleTimer
	steering steering
	tunnels  tunnels
	programs programs
	declared declared
	backlog  backlog
	schedule schedule
	naming   naming
}

// New returns Hooks that have hooked nothing yet. They work in the network
// namespace of the process.
func New(o Options) (*Hooks, error) {
	links, err := nlmsg.OpenRequests(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	scanner, err := discover.NewScanner()
	if err != nil {
		return nil, errors.Join(err, links.Close())
	}
	h := &Hooks{
		opts:     o,
		scanner:  scanner,
		ports:    make(map[int]*Port),
		blocked:  make(map[int]string),
		uplinks:  make(map[int]discover.Uplink),
		attacher: attacher{dp: o.Datapath, log: o.Logger, goOn: o.GoOn},
		delivery: delivery{dp: o.Datapath, links: links, log: o.Logger, newGeneration: o.NewGeneration, hasConentries: o.HasConentries},
		steering: make(steering),
		tunnels: tunnels{
			dp: o.Datapath, log: o.Logger, newGeneration: o.NewGeneration, touches: o.TouchesTunnel,
			open: make(map[int]*tunnel),
		},
		programs: newPrograms(o.Datapath.Programs, o.Logger),
		declared: newDeclared(o.Regular),
		backlog:  newBacklog(),
		schedule: newSchedule(),
		naming:   newNaming(),
	}
	return h, nil
}

// Close ends the goroutines and closes what New and Scan opened. What is hooked
// stays.
func (h *Hooks) Close() error {
	h.naming.close()
	for _, p := range h.ports {
		p.closePair()
	}
	h.steering.close()
	h.tunnels.close()
	return errors.Join(h.scanner.Close(), h.delivery.links.Close())
}

// Scan hooks the devices that exist. It is an error if one that the options name
// is missing.
func (h *Hooks) Scan() error { return h.scan(false) }

// Rescan makes what is hooked equal to what should be. Devices may be missing, and
// new ports are hooked in batches.
func (h *Hooks) Rescan() {
	if err := h.scan(true); err != nil {
		h.opts.Logger.Error("scanning the devices", "error", err)
	}
}

// scan first takes up what packets may be forwarded wrongly by, and then hooks new ports,
// which takes longest.
func (h *Hooks) scan(lenient bool) (err error) {
	changed := h.schedule.begin()
	defer h.schedule.end()
	var s survey
	h.opts.GoOn(func() { s, err = h.survey(changed, lenient) })
	if err != nil {
		h.schedule.again()
		return err
	}
	h.skipped, h.qdiscs, h.unhooked, h.blocked, h.ageing = s.topology.Skipped, s.topology.Qdiscs, nil, s.blocked, s.ageing
	h.idle = s.topology.IdleTimer
	h.setPath(s.path, s.topology.Asks) // before any uplink that has come is hooked
	h.steering.set(s.topology.Bridges, s.whole)
	ports := h.hookablePorts(s)
	h.unhookPorts(ports)
	fresh := h.updatePorts(ports, s.changed)
	h.setUplinks(h.hookableUplinks(s))
	h.SetTunnels()
	h.schedule.settling = false
	h.hookNew(fresh, ports, lenient)
	if !s.whole {
		return nil // what is gone was unhooked
	}
	if err := h.dropStale(); err != nil {
		h.schedule.dirty.all = true
		return err
	}
	return nil
}

// survey is what a scan reads of the devices. The kernel's lock of rtnetlink, which each
// reading may have to wait for, is held for long where containers start or end.
type survey struct {
	topology discover.Topology
	whole    bool // all devices were read, not only those that have changed
	path     path
	ageing   ageing
	blocked  map[int]string   // what keeps ports and uplinks from being hooked; "" is nothing
	changed  map[int]received // how hooked ports that have changed deliver
}

// received is what delivery.reception returns.
type received struct {
	discover.Reception
	err error
}

// survey reads the devices. It changes nothing but the scanner.
func (h *Hooks) survey(changed dirty, lenient bool) (s survey, err error) {
	if s.topology, s.whole, err = h.discover(changed, lenient); err != nil {
		return s, err
	}
	known := &h.path
	if s.whole {
		known = nil
	}
	s.path = newPath(s.topology, h.opts.Datapath.Programs(), known)
	s.ageing = h.ageing.ask(s.path.bridges(), time.Now())
	s.blocked, s.changed = make(map[int]string), make(map[int]received)
	for _, p := range s.topology.Ports {
		if hooked := h.ports[p.Index]; hooked != nil && changed.has(p) {
			r, err := h.delivery.reception(&Port{Port: p, pair: hooked.pair})
			s.changed[p.Index] = received{r, err}
		}
		// Read again only if it may have changed: thousands may wait to be hooked.
		why, known := h.blocked[p.Index] // not if something else kept it from being hooked
		if changed.has(p) || why != "" || !known && h.ports[p.Index] == nil {
			why = h.unhookable(p.Index)
		}
		s.blocked[p.Index] = why
	}
	for _, u := range s.topology.Uplinks {
		if _, hooked := h.uplinks[u.Index]; !hooked || s.whole { // else it has not changed
			s.blocked[u.Index] = h.unhookable(u.Index)
		}
	}
	return s, nil
}

// discover reads the topology: all of it, or only devices that have changed.
func (h *Hooks) discover(changed dirty, lenient bool) (topology discover.Topology, whole bool, err error) {
	opts := discover.Options{Bridges: h.opts.Bridges, Uplinks: h.opts.Uplinks, Lenient: lenient}
	if !changed.all && !changed.more && lenient {
		if topology, ok, err := h.scanner.Update(opts, changed.devices); ok || err != nil {
			return topology, false, err
		}
	}
	topology, err = h.scanner.Scan(opts)
	return topology, true, err
}

// setPath takes up the devices on the regular path.
func (h *Hooks) setPath(next path, asks discover.Question) {
	same := next.sameDevices(h.path) && asks == h.asks
	h.path, h.asks = next, asks
	if !same {
		h.opts.DevicesChanged()
	}
}

// hookablePorts are the ports that may be hooked. The others are skipped.
func (h *Hooks) hookablePorts(s survey) map[int]discover.Port {
	ports := make(map[int]discover.Port)
	for _, p := range s.topology.Ports {
		inside, _ := p.Inside()
		if why := cmp.Or(h.declared.device(p.Name), h.KeptBridge(inside)); why != "" {
			delete(h.blocked, p.Index)
			h.skip(p.Name, why)
		} else if why := h.blocked[p.Index]; why != "" {
			h.skip(p.Name, why)
		} else {
			ports[p.Index] = p
		}
	}
	return ports
}

// hookableUplinks are the uplinks that may be hooked. The others are skipped.
func (h *Hooks) hookableUplinks(s survey) map[int]discover.Uplink {
	uplinks := make(map[int]discover.Uplink)
	for _, u := range s.topology.Uplinks {
		if why := cmp.Or(h.declared.device(u.Name), s.blocked[u.Index]); why != "" {
			h.skipped = append(h.skipped, discover.Skipped{Dev: u.Name, Reason: why, Bridge: u.Bridge.Index})
			continue
		}
		uplinks[u.Index] = u
	}
	return uplinks
}

func (h *Hooks) skip(dev, why string) {
	h.skipped = append(h.skipped, discover.Skipped{Dev: dev, Reason: why})
}

// fail notes that a device could not be hooked. The next scan tries again.
func (h *Hooks) fail(dev string, err error) {
	h.skip(dev, err.Error())
	h.unhooked = append(h.unhooked, discover.Skipped{Dev: dev, Reason: err.Error()})
}

// unhookable returns which filters or programs of others the express path would
// skip on a device, "" if none.
func (h *Hooks) unhookable(ifindex int) string {
	if why := h.programs.why(ifindex); why != "" {
		return why
	}
	filter, err := discover.ForeignIngress(ifindex)
	switch {
	case err != nil && !errors.Is(err, unix.ENODEV):
		return err.Error() // in doubt
	case filter == "":
		return "" // attaching fails if the device was removed
	}
	return "its ingress filter " + filter + " must see every packet"
}

// Poll reads what the kernel does not announce: how containers receive,
// packet steering, how long bridges keep MAC addresses, and programs of others. The loop
// calls it once a second, and Update behind it.
func (h *Hooks) Poll(now time.Time) {
	var ports []*Port // that deliver otherwise than was set
	var changed string
	var moves []datapath.Attached
	ageing := h.ageing
	h.opts.GoOn(func() {
		ageing = ageing.ask(h.path.bridges(), now)
		for _, p := range h.ports {
			if h.delivery.changed(p) {
				ports = append(ports, p)
			}
		}
		changed, moves = h.programs.poll(h.places(), h.opts.Datapath.Mode() == "tcx", now)
		if dev := h.path.changedXDP(h.delivery.links); dev != "" {
			changed = "XDP at " + dev
		}
	})
	h.ageing = ageing
	// A bridge that steers its packets to other CPUs lets those of one container overtake
	// each other: its ports are not hooked.
	if h.steering.poll(h.opts.Logger) {
		h.opts.NewGeneration("packet steering at a bridge")
		h.schedule.mustScan()
	}
	if changed != "" { // express packets may have skipped them until now
		h.opts.FiltersChanged(changed)
		h.schedule.mustScan()
	}
	for _, p := range ports {
		h.delivery.setNetkit(p, h.delivery.netkitPrograms(p))
		h.delivery.set(p)
	}
	h.SetTunnels()
	for _, m := range moves {
		h.attacher.move(m)
	}
}

// places are the sides of devices that packets of containers pass, and SCON's
// hook there, nil if there is none.
func (h *Hooks) places() map[place]*datapath.Hook {
	all := make(map[place]*datapath.Hook)
	for _, inside := range h.path.inside {
		for _, dev := range inside {
			addPlaces(all, dev.Index, nil)
		}
	}
	for at := range h.programs.left {
		addPlaces(all, at.ifindex, nil)
	}
	for index := range h.ports {
		addPlaces(all, index, datapath.PortHooks)
	}
	for index := range h.uplinks {
		addPlaces(all, index, datapath.UplinkHooks)
	}
	return all
}

// dropStale removes hooks that an earlier daemon left where none should be, and
// attaches those again that were removed.
func (h *Hooks) dropStale() error {
	attached, err := h.opts.Datapath.Attached()
	if err != nil {
		return err
	}
	want := make(map[int][]datapath.Hook, len(h.ports)+len(h.uplinks))
	for index := range h.uplinks {
		want[index] = datapath.UplinkHooks
	}
	for index, p := range h.ports {
		want[index] = p.Hooks()
	}
	return h.attacher.enforce(want, attached)
}

// isHooked reports whether a device is hooked.
func (h *Hooks) isHooked(ifindex int) bool {
	_, isUplink := h.uplinks[ifindex]
	return h.ports[ifindex] != nil || isUplink
}

// Port returns a hooked port, nil if there is none with that ifindex. It is the
// same until the port is no longer hooked.
func (h *Hooks) Port(ifindex int) *discover.Port {
	if p := h.ports[ifindex]; p != nil && p.withheld == "" {
		return &p.Port
	}
	return nil
}

// Inside lists the devices by which IP may see packets of the container behind a
// port come and go.
func (h *Hooks) Inside(p *discover.Port) []rules.Device {
	index, _ := p.Inside()
	return h.path.inside[index]
}

// Asks is what a queue of the devices asks that packets leave by.
func (h *Hooks) Asks() discover.Question { return h.asks }

// Outside lists those by which IP may see packets come and go outside.
func (h *Hooks) Outside() []rules.Device { return h.path.outside }

// Bridged lists the uplinks that are ports of the bridge of the container behind a port.
func (h *Hooks) Bridged(p *discover.Port) []rules.Device { return h.path.bridged[p.Bridge.Index] }

// PathDevices names the devices by which IP may see packets of containers.
func (h *Hooks) PathDevices() []string {
	names := make(map[string]bool)
	for _, d := range h.path.outside {
		names[d.Name] = true
	}
	for _, inside := range h.path.inside {
		for _, d := range inside {
			names[d.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// IdleTimer is the shortest time without packets after which the kernel moves packets of a
// resilient group of next hops, 0 if there is no such group.
func (h *Hooks) IdleTimer() time.Duration { return h.idle }

// PortNamed returns the hooked port with a device's name, nil if there is none.
func (h *Hooks) PortNamed(dev string) *Port {
	for _, p := range h.ports {
		if p.Name == dev {
			return p
		}
	}
	return nil
}

// Ports are the hooked ports by ifindex. The caller must not change the map.
func (h *Hooks) Ports() map[int]*Port { return h.ports }

// Uplinks are the hooked uplinks by ifindex. The caller must not change the map.
func (h *Hooks) Uplinks() map[int]discover.Uplink { return h.uplinks }

// EarlyPorts lists the hooked ports of containers, and EarlyUplinks the hooked uplinks, between
// which programs may compose connections: those that IP joins, without a tunnel, and where
// packets of discover.Wide bytes pass.
func (h *Hooks) EarlyPorts() (all []int) {
	for index, p := range h.ports {
		if p.Wide && p.delivery.longest >= discover.Wide {
			all = append(all, index)
		}
	}
	return all
}

// EarlyUplinks: see EarlyPorts.
func (h *Hooks) EarlyUplinks() (all []int) {
	for index, u := range h.uplinks {
		if u.Wide && !u.Bare() && u.Bridge.Index == 0 && u.TunnelPort == 0 {
			all = append(all, index)
		}
	}
	return all
}

// WideUplinks reports whether packets of discover.Wide bytes pass all uplinks: an early Conentry
// may come to leave by another one than it was composed for, or by one that was made narrow.
func (h *Hooks) WideUplinks() bool {
	for _, u := range h.uplinks {
		if !u.Wide {
			return false
		}
	}
	return true
}

// Unhooked lists devices that should be hooked, but could not be at the last scan.
func (h *Hooks) Unhooked() []discover.Skipped { return h.unhooked }

// KeptBridge returns why ports of a bridge, or the port of a routed container, are not
// hooked, "" if they may be.
func (h *Hooks) KeptBridge(ifindex int) string {
	return cmp.Or(h.steering.why(ifindex), h.path.controls[ifindex])
}

// Skipped lists devices that are not hooked though one might expect it.
func (h *Hooks) Skipped() []discover.Skipped { return h.skipped }

// PastRegular counts regular packets of ports that are no longer hooked.
func (h *Hooks) PastRegular() uint64 { return h.pastRegular }
