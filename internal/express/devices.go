package express

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
	"github.com/scon-project/scon/internal/host/changes"
)

const protoTCP = unix.IPPROTO_TCP

// devices is what is hooked now.
type devices struct {
	ports   map[int]*port
	uplinks map[int]discover.Uplink
	skipped []api.Skipped
	// bridges are those with ports to hook; steering are those of them that
	// hand packets to other CPUs.
	bridges   map[int]*discover.Device
	steering  map[int]bool
	tunnels   map[int]*tunnel
	qdiscs    map[int]string // as discover.Topology has them
	newcomers newcomers
	outdated  outdated
	looked    time.Time // when they were
	due       time.Time // of a look at them that can wait, zero if there is none
	// pastRegular counts regular packets of ports that are gone.
	pastRegular uint64
}

// port is a container's bridge port.
type port struct {
	discover.Port
	container discover.Container
	paused    bool
	pair      *discover.Pair // nil until it was found
	queued    string         // why packets for it take its queue, "" if they do not
	shortcut  bool           // of a netkit pair: its packets leave the container's transmit call
	past      string         // who would miss them if they did
	// netkitForeign is who has programs at the pair's end on the host.
	netkitForeign string
	mac           [6]byte // of the container's device, 0 if that is not known
	longest       uint16  // as discover.Reception has it
	candidates    limiter
	droppable     limiter // questions whether the rules drop a connection
	refused       map[string]uint64
	rule          rules.Rule // the latest one that kept a connection regular
}

// namedContainer is an answer of the namer.
type namedContainer struct {
	port      *port
	container discover.Container
	pair      *discover.Pair // nil if it was not found
}

func newDevices() devices {
	return devices{
		ports:     make(map[int]*port),
		uplinks:   make(map[int]discover.Uplink),
		bridges:   make(map[int]*discover.Device),
		steering:  make(map[int]bool),
		tunnels:   make(map[int]*tunnel),
		newcomers: newNewcomers(),
	}
}

// name gives a port its container, if it is still there.
func (d *Daemon) name(n namedContainer) {
	if d.devices.ports[n.port.Index] != n.port {
		n.close()
		return
	}
	n.port.container, n.port.pair = n.container, n.pair
	if c, ok := d.ownedBy(n.port.Name); ok { // maybe since after the search began
		n.port.container = c
	}
	d.setDelivery(n.port)
}

// whoIs finds out who is behind a port.
func (d *Daemon) whoIs(p *port, at discover.Port) namedContainer {
	n := namedContainer{port: p, container: d.nameOf(at)}
	pair, err := discover.OpenPair(at, n.container)
	if err != nil { // it may just have got another owner
		n.container = d.nameOf(at)
		pair, err = discover.OpenPair(at, n.container)
	}
	if err != nil {
		d.log.Debug("looking at a veth pair", "dev", at.Name, "error", err)
		return n
	}
	n.pair = pair
	return n
}

// endNaming waits for those who look for containers. The context has ended.
func (d *Daemon) endNaming() {
	d.naming.Wait()
	close(d.named)
	for n := range d.named {
		n.close()
	}
}

func (n namedContainer) close() {
	if n.pair != nil {
		n.pair.Close()
	}
}

// changed takes a change of the network and those that wait behind it: a burst
// of containers is looked at once. Decisions are stale already.
func (d *Daemon) changed(c changes.Event, more <-chan changes.Event) error {
	topology, urgent := false, false
	for waiting := true; waiting; {
		if c.Topology {
			topology, urgent = true, urgent || d.isUrgent(c)
			d.devices.outdated.add(c)
		}
		select {
		case c, waiting = <-more:
		default:
			waiting = false
		}
	}
	if urgent {
		d.look()
	} else if topology {
		d.lookLater(time.Until(d.devices.looked.Add(lookInterval)))
	}
	now := time.Now()
	d.retireDiscards(nil, now) // their packets may be for this host now
	return d.readRules(now)
}

// look looks at the devices now.
func (d *Daemon) look() {
	if err := d.rescan(true); err != nil {
		d.log.Error("looking for containers", "error", err)
	}
}

// lookLater looks at them after some time, or sooner if that has been asked for.
func (d *Daemon) lookLater(after time.Duration) {
	due := time.Now().Add(after)
	if d.devices.due.IsZero() || due.Before(d.devices.due) {
		d.devices.due = due
		d.lookDue.Reset(max(0, after))
	}
}

// rescan makes what is hooked equal to what should be. A device that is named
// must be there when the daemon starts; later it may go and come back.
func (d *Daemon) rescan(lenient bool) (err error) {
	c := d.opts.Config
	changed := d.devices.outdated
	d.devices.outdated, d.devices.due, d.devices.looked = outdated{}, time.Time{}, time.Now()
	d.lookDue.Stop()
	defer func() {
		if err != nil {
			d.devices.outdated.all = true
		}
	}()
	topology, err := discover.Scan(discover.Options{Bridges: c.Bridges, Uplinks: c.Uplinks, Lenient: lenient})
	if err != nil {
		return err
	}
	skipped := make([]api.Skipped, 0, len(topology.Skipped))
	for _, s := range topology.Skipped {
		skipped = append(skipped, api.Skipped(s))
	}

	d.lookAtDevices(topology)
	d.setBridges(topology.Bridges)
	ports := make(map[int]discover.Port)
	for _, p := range topology.Ports {
		inside, _ := p.Inside()
		why := cmp.Or(d.devices.steered(p), d.policy.controls[inside])
		if why == "" && (d.devices.ports[p.Index] == nil || changed.has(p)) {
			why = d.unhookable(p.Index)
		}
		if why != "" {
			skipped = append(skipped, api.Skipped{Dev: p.Name, Reason: why})
			continue
		}
		ports[p.Index] = p
	}
	uplinks := make(map[int]discover.Uplink)
	for _, u := range topology.Uplinks {
		if why := d.unhookable(u.Index); why != "" {
			skipped = append(skipped, api.Skipped{Dev: u.Name, Reason: why})
			continue
		}
		uplinks[u.Index] = u
	}
	d.devices.skipped, d.devices.qdiscs = skipped, topology.Qdiscs
	d.setPorts(ports, changed, lenient)
	d.setUplinks(uplinks)
	d.setTunnels()
	return d.dropStale()
}

// unhookable says whose filters the express way would skip on a device.
func (d *Daemon) unhookable(ifindex int) string {
	if why := d.policy.contested[ifindex]; why != "" {
		return why
	}
	filter, err := discover.ForeignIngress(ifindex)
	if err != nil || filter == "" {
		return "" // a device that is gone is found out on attaching
	}
	return "its ingress filter " + filter + " must see every packet"
}

// setPorts makes the ports that are hooked those that are wanted, and looks at
// those again that have changed; with later, it hooks new ones when it is their
// turn.
func (d *Daemon) setPorts(want map[int]discover.Port, changed outdated, later bool) {
	var gone []*port
	for index, p := range d.devices.ports {
		if w, ok := want[index]; !ok || w.PeerNSID != p.PeerNSID || w.Bridge != p.Bridge {
			gone = append(gone, p)
		}
	}
	d.unhookPorts(gone)
	var fresh []int
	renamed := false // rules name devices
	for index, w := range want {
		if p := d.devices.ports[index]; p != nil {
			renamed = renamed || p.Name != w.Name
			p.Port = w
			if changed.has(w) {
				d.setDelivery(p)
			}
		} else {
			fresh = append(fresh, index)
		}
	}
	if renamed {
		d.retireTouched(time.Now())
	}
	if later {
		fresh = d.devices.newcomers.meet(fresh, time.Now())
	}
	ports := make(map[int]datapath.Delivery, len(fresh))
	for _, index := range fresh {
		ports[index] = datapath.Delivery{Queue: true} // until it is known how else
	}
	begin := time.Now()
	hooked := d.hookAll(ports, datapath.PortHooks)
	if len(hooked) > 0 {
		d.devices.newcomers.hooked(begin, time.Now())
	}
	for index, err := range hooked {
		w := want[index]
		if err != nil {
			d.devices.skipped = append(d.devices.skipped, api.Skipped{Dev: w.Name, Reason: err.Error()})
			continue
		}
		p := &port{
			Port: w, container: discover.Container{Name: w.Name}, refused: make(map[string]uint64),
			queued: unknownPair,
		}
		d.devices.ports[index] = p
		d.lookAtNetkit(p)
		d.log.Info("container hooked", "dev", w.Name, "bridge", w.Bridge.Name)
		d.naming.Go(func() {
			n := d.whoIs(p, w)
			select {
			case d.named <- n:
			case <-d.ctx.Done():
				n.close()
			}
		})
	}
	if wait, ok := d.devices.newcomers.wait(time.Now()); ok {
		d.lookLater(wait)
	}
}

func (d *Daemon) unhookPorts(gone []*port) {
	now := time.Now()
	var wg sync.WaitGroup
	for _, p := range gone {
		d.table.ForgetPort(p.Index, now)
		if c, err := d.dp.Counters(p.Index); err == nil {
			d.devices.pastRegular += c.Packets
		}
		delete(d.devices.ports, p.Index)
		if p.pair != nil {
			p.pair.Close()
		}
		wg.Go(func() { d.unhook(p.Index, p.hooks()) })
		d.log.Info("container gone", "dev", p.Name, "name", p.container.Name)
	}
	d.beatUntil(wg.Wait)
}

func (d *Daemon) setUplinks(want map[int]discover.Uplink) {
	for index, u := range d.devices.uplinks {
		if w, ok := want[index]; !ok || w.Bare() != u.Bare() {
			d.unhook(index, datapath.UplinkHooks)
			delete(d.devices.uplinks, index)
			d.log.Info("uplink gone", "dev", u.Name)
		}
	}
	fresh := make(map[int]datapath.Delivery)
	for index, w := range want {
		if _, ok := d.devices.uplinks[index]; ok {
			d.devices.uplinks[index] = w
		} else {
			fresh[index] = datapath.Delivery{Bare: w.Bare()}
		}
	}
	for index, err := range d.hookAll(fresh, datapath.UplinkHooks) {
		w := want[index]
		if err != nil {
			d.devices.skipped = append(d.devices.skipped, api.Skipped{Dev: w.Name, Reason: err.Error()})
			continue
		}
		d.devices.uplinks[index] = w
		d.log.Info("uplink hooked", "dev", w.Name)
	}
}

// hookAll hooks devices side by side, as far as the kernel lets it: at each it
// waits for an RCU grace period. It returns the outcome for each device.
func (d *Daemon) hookAll(devices map[int]datapath.Delivery, hooks []datapath.Hook) map[int]error {
	outcome := make(map[int]error, len(devices))
	var mu sync.Mutex // guards outcome
	var wg sync.WaitGroup
	for index, how := range devices {
		wg.Go(func() {
			err := d.hook(index, how, hooks)
			mu.Lock()
			defer mu.Unlock()
			outcome[index] = err
		})
	}
	d.beatUntil(wg.Wait)
	return outcome
}

// hook attaches all of hooks to a device, or none.
func (d *Daemon) hook(ifindex int, how datapath.Delivery, hooks []datapath.Hook) (err error) {
	defer func() {
		if err != nil {
			d.unhook(ifindex, hooks)
		}
	}()
	if err := d.dp.Track(ifindex, how); err != nil {
		return err
	}
	var group errgroup.Group
	for _, h := range hooks {
		group.Go(func() error { return d.dp.Attach(h, ifindex) })
	}
	return group.Wait()
}

// beatUntil waits for what takes long, alive: for a burst of fifty containers
// the kernel takes a second.
func (d *Daemon) beatUntil(wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	for {
		select {
		case <-done:
			return
		case <-beat.C:
			if err := d.beat(); err != nil {
				d.log.Error("showing a sign of life", "error", err)
			}
		}
	}
}

func (d *Daemon) unhook(ifindex int, hooks []datapath.Hook) {
	var errs []error
	for _, h := range hooks {
		errs = append(errs, d.dp.Detach(h, ifindex))
	}
	errs = append(errs, d.dp.Untrack(ifindex))
	if err := errors.Join(errs...); err != nil {
		d.log.Error("unhooking a device", "ifindex", ifindex, "error", err)
	}
}

// dropStale removes hooks that an earlier daemon left where none should be, and
// puts back those that somebody has taken away.
func (d *Daemon) dropStale() error {
	attached, err := d.dp.Attached()
	if err != nil {
		return err
	}
	d.restore(attached)
	for _, a := range attached {
		isPort, isUplink := d.hooked(a.Ifindex)
		switch {
		case a.Hook == datapath.FromNetkit:
			if isPort && d.devices.ports[a.Ifindex].shortcut {
				continue
			}
		case a.Hook.OnPort() && isPort, !a.Hook.OnPort() && isUplink:
			continue
		}
		if err := d.dp.Detach(a.Hook, a.Ifindex); err != nil {
			return err
		}
	}
	for _, ifindex := range d.dp.Tracked() {
		if isPort, isUplink := d.hooked(ifindex); !isPort && !isUplink {
			if err := d.dp.Untrack(ifindex); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Daemon) hooked(ifindex int) (isPort, isUplink bool) {
	_, isPort = d.devices.ports[ifindex]
	_, isUplink = d.devices.uplinks[ifindex]
	return isPort, isUplink
}
