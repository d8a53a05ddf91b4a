package hooks

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// Port is a container's hooked port.
type Port struct {
	discover.Port
	// Container is the container behind it. Until it is identified, it has the
	// port's name only.
	Container discover.Container

	withheld string          // as Withheld has it
	pair     *discover.Pair  // nil until the container is identified
	ctx      context.Context // ends with the port, and then calls of its container's engine
	end      context.CancelFunc
	delivery reception
	netkit   netkit
}

// Queue returns why packets for the container take the port's queue, "" if they
// do not.
func (p *Port) Queue() string { return p.delivery.queue }

// hookNew hooks those that are wanted of ports that are not hooked: with batch in batches,
// without those of an earlier daemon and the busiest others.
func (h *Hooks) hookNew(fresh []int, want map[int]discover.Port, batch bool) {
	if busy := func(index int) uint64 { return want[index].Packets }; batch {
		fresh = h.backlog.admit(fresh, busy, time.Now())
	} else {
		fresh = h.first(fresh, busy)
	}
	h.hookPorts(fresh, want)
	if wait, ok := h.backlog.wait(time.Now()); ok {
		h.schedule.scanIn(wait)
	}
}

// mostAtStart is how many new ports are hooked before the daemon is up: some seconds'
// worth. All others follow in batches.
const mostAtStart = 64

// first returns the ports to hook at the start.
func (h *Hooks) first(fresh []int, busy func(index int) uint64) (next []int) {
	adopted := make(map[int]bool)
	for _, index := range h.opts.Datapath.Tracked() {
		adopted[index] = true
	}
	slices.SortFunc(fresh, func(i, j int) int { return cmp.Compare(busy(j), busy(i)) })
	others := 0
	for _, index := range fresh {
		if !adopted[index] {
			others++
		}
		if adopted[index] || others <= mostAtStart {
			next = append(next, index)
		}
	}
	if others > mostAtStart {
		h.schedule.scanIn(0)
	}
	return next
}

// unhookPorts unhooks the ports that are not wanted any more, or that have become
// another container's.
func (h *Hooks) unhookPorts(want map[int]discover.Port) {
	gone := make(map[int][]datapath.Hook)
	for index, p := range h.ports {
		if w, ok := want[index]; ok && w.PeerNSID == p.PeerNSID && w.Bridge == p.Bridge {
			continue
		}
		h.opts.PortGone(index)
		if c, err := h.opts.Datapath.Counters(index); err == nil {
			h.pastRegular += c.Packets
		}
		delete(h.ports, index)
		p.closePair()
		p.end()
		gone[index] = p.Hooks()
		h.opts.Logger.Info("container gone", "dev", p.Name, "name", p.Container.Name)
	}
	h.attacher.detachAll(gone)
}

// updatePorts takes up what has changed of hooked ports, and returns those that
// are wanted and not hooked.
func (h *Hooks) updatePorts(want map[int]discover.Port, changed map[int]received) (fresh []int) {
	renamed := false // rules name devices
	for index, w := range want {
		p := h.ports[index]
		if p == nil {
			fresh = append(fresh, index)
			continue
		}
		renamed = renamed || p.Name != w.Name
		p.Port = w
		if r, ok := changed[index]; ok {
			h.delivery.write(p, r.Reception, r.err)
		}
	}
	if renamed {
		h.opts.DevicesChanged()
	}
	return fresh
}

func (h *Hooks) hookPorts(fresh []int, want map[int]discover.Port) {
	devices := make(map[int]datapath.Delivery, len(fresh))
	for _, index := range fresh {
		devices[index] = datapath.Delivery{Queue: true, Longest: discover.Longest(want[index].MTU)} // until the container is identified
		h.opts.PortThere(index)
	}
	begin := time.Now()
	hooked := h.attacher.attachAll(devices, datapath.PortHooks)
	if len(hooked) > 0 {
		h.backlog.hooked(begin, time.Now())
	}
	for index, err := range hooked {
		w := want[index]
		if err != nil {
			h.opts.PortGone(index)
			h.fail(w.Name, err)
			continue
		}
		p := &Port{Port: w, Container: discover.Container{Name: w.Name}, delivery: reception{queue: unknownPair, longest: discover.Longest(w.MTU)}}
		p.ctx, p.end = context.WithCancel(h.naming.ctx)
		h.ports[index] = p
		h.withhold(p, false)
		h.delivery.setNetkit(p, h.delivery.netkitPrograms(p))
		h.opts.Logger.Info("container hooked", "dev", w.Name, "bridge", w.Bridge.Name)
		h.identify(p, w)
	}
}

// closePair closes what was opened for a port.
func (p *Port) closePair() {
	if p.pair != nil {
		p.pair.Close()
	}
}

// setUplinks makes the hooked uplinks those that are wanted.
func (h *Hooks) setUplinks(want map[int]discover.Uplink) {
	for index, u := range h.uplinks {
		if w, ok := want[index]; !ok || w.Bare() != u.Bare() || w.ByRoute != u.ByRoute || w.Bridge.Index != u.Bridge.Index {
			h.attacher.detach(index, datapath.UplinkHooks)
			delete(h.uplinks, index)
			h.opts.Logger.Info("uplink gone", "dev", u.Name)
			if u.Bridge.Index != 0 { // its bridge may not learn any more what decisions rely on
				h.opts.NewGeneration("no uplink any more: " + u.Name)
			}
		}
	}
	fresh := make(map[int]datapath.Delivery)
	for index, w := range want {
		if u, ok := h.uplinks[index]; ok {
			h.uplinks[index] = w
			h.setLongest(w, u.MTU)
		} else {
			fresh[index] = uplinkDelivery(w)
		}
	}
	for index, err := range h.attacher.attachAll(fresh, datapath.UplinkHooks) {
		w := want[index]
		if err != nil {
			h.fail(w.Name, err)
			continue
		}
		h.uplinks[index] = w
		h.opts.Logger.Info("uplink hooked", "dev", w.Name)
	}
	for index, u := range h.uplinks {
		h.setSpread(index, u)
	}
}

// uplinkDelivery is how packets leave by an uplink.
func uplinkDelivery(u discover.Uplink) datapath.Delivery {
	how := datapath.Delivery{Bare: u.Bare(), Bridged: u.Bridge.Index != 0, ByRoute: u.ByRoute}
	if how.Bridged {
		how.Longest = discover.Longest(u.MTU)
	}
	return how
}

// setLongest says which packets a bridge lets leave by a port that leads out, if that has
// changed: decisions before may have been made about longer ones.
func (h *Hooks) setLongest(u discover.Uplink, was int) {
	if u.Bridge.Index == 0 || u.MTU == was {
		return
	}
	if err := h.opts.Datapath.Track(u.Index, uplinkDelivery(u)); err != nil {
		h.opts.Logger.Error("setting the longest packets of a port that leads out", "dev", u.Name, "error", err)
	}
	h.opts.NewGeneration("the MTU of " + u.Name)
}

// setSpread says whether an uplink has one of several next hops, if that has changed:
// decisions before have been recorded without the sender's hash.
func (h *Hooks) setSpread(index int, u discover.Uplink) {
	changed, err := h.opts.Datapath.SetSpread(index, u.Spread)
	if err != nil {
		h.opts.Logger.Error("telling the programs of several next hops", "dev", u.Name, "error", err)
	}
	if changed {
		h.opts.NewGeneration("several next hops, or one, at " + u.Name)
	}
}
