package express

import (
	"errors"
	"maps"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// How packets reach a container: straight into its namespace, or through its
// port's queue where something would be skipped otherwise, or be overtaken.
// Packet steering, XDP programs and what changes within the container are not
// announced: they are looked for once a second.

// unknownPair is why packets take the queue of a container that was not found.
const unknownPair = "it is not known how the container receives packets"

// setDelivery tells the programs how a port delivers. Decisions made since the
// change was heard of do not know that yet.
func (d *Daemon) setDelivery(p *port) {
	r, err := d.reception(p)
	if err == nil && !p.receives(r) {
		err = d.dp.Track(p.Index, datapath.Delivery{Queue: r.Detour != "", MAC: r.MAC, Longest: r.Longest})
		d.newGeneration("the delivery at " + p.Name)
	}
	if errors.Is(err, discover.ErrGone) {
		return // its port is about to be taken off the list
	}
	if err != nil {
		d.log.Error("looking at the delivery at a port", "dev", p.Name, "error", err)
		return
	}
	if p.queued != r.Detour {
		d.log.Debug("delivery", "dev", p.Name, "through_queue", r.Detour)
	}
	p.queued, p.mac, p.longest = r.Detour, r.MAC, r.Longest
}

// receives tells whether the programs need not be told anything.
func (p *port) receives(r discover.Reception) bool {
	return (r.Detour == "") == (p.queued == "") && r.MAC == p.mac && r.Longest == p.longest
}

// reception finds out how a container receives, and whether something at its
// port takes packets into its queue.
func (d *Daemon) reception(p *port) (r discover.Reception, err error) {
	if p.pair == nil {
		r.Detour = unknownPair
	} else if r, err = p.pair.Reception(d.links, p.MTU); err != nil {
		return r, err
	}
	if p.Kind == discover.Netkit {
		if foreign, err := p.NetkitPrograms(d.dp.Programs()); foreign != "" || err != nil {
			r.Detour = foreign
			return r, err
		}
	}
	shaped, err := p.ShapesEgress(d.dp.Programs())
	if shaped {
		r.Detour = "a qdisc or filter at " + p.Name
	}
	return r, err
}

// lookAtDelivery finds out what is not announced. A bridge that steers its
// packets lets those out of a container overtake each other: its ports are not
// hooked.
func (d *Daemon) lookAtDelivery() {
	for _, p := range d.devices.ports {
		if p.Kind == discover.Netkit {
			d.lookAtNetkit(p)
		}
		if p.pair == nil {
			continue
		}
		if r, err := p.pair.Reception(d.links, p.MTU); err == nil && !p.receives(r) {
			d.setDelivery(p)
		}
	}
	d.setTunnels()
	steering := maps.Clone(d.devices.steering)
	d.lookAtBridges()
	if maps.Equal(steering, d.devices.steering) {
		return
	}
	d.newGeneration("packet steering at a bridge")
	d.devices.outdated.all = true
	d.look()
}

// setBridges opens the bridges whose ports are to be hooked.
func (d *Daemon) setBridges(want []discover.Bridge) {
	v := &d.devices
	wanted := make(map[int]bool, len(want))
	for _, b := range want {
		wanted[b.Index] = true
		if v.bridges[b.Index] != nil {
			continue
		}
		device, err := discover.OpenDevice(b.Name, b.Index)
		if err != nil {
			d.log.Error("looking for packet steering at a bridge", "dev", b.Name, "error", err)
			continue
		}
		v.bridges[b.Index] = device
	}
	for index, device := range v.bridges {
		if !wanted[index] {
			device.Close()
			delete(v.bridges, index)
		}
	}
	d.lookAtBridges()
}

// lookAtBridges finds the bridges that steer.
func (d *Daemon) lookAtBridges() {
	clear(d.devices.steering)
	for index, device := range d.devices.bridges {
		if steers, err := device.Steers(); err == nil && steers {
			d.devices.steering[index] = true
		}
	}
}

// steered says why a port is not hooked, "" if it is.
func (v *devices) steered(p discover.Port) string {
	if !v.steering[p.Bridge.Index] {
		return ""
	}
	return "its bridge " + p.Bridge.Name + " hands packets to other CPUs (rps_cpus), where they would be overtaken; steer them at the port instead"
}

// close closes what is open of devices.
func (v *devices) close() {
	for _, p := range v.ports {
		if p.pair != nil {
			p.pair.Close()
		}
	}
	for _, b := range v.bridges {
		b.Close()
	}
	for _, t := range v.tunnels {
		t.device.Close()
	}
}

// explainDelivery says so if packets for a container take the queue.
func explainDelivery(p *port) []api.Finding {
	if p.queued == "" {
		return nil
	}
	return []api.Finding{{
		Level: "note", What: "express packets for it take the queue of " + p.Name, Why: p.queued,
	}}
}
