package hooks

import (
	"errors"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/host/nlmsg"
)

// delivery sets for the programs how packets reach each container: straight into its
// namespace, or through its port's queue where they would skip or overtake
// something otherwise. Packet steering, XDP programs and changes within the
// container are not announced: they are polled once a second.
type delivery struct {
	dp            *datapath.Datapath
	links         *nlmsg.Requests // asks about devices
	log           *slog.Logger
	newGeneration func(reason string)
	hasConentries func(ifindex int) bool
}

// reception is what was set for a port.
type reception struct {
	queue   string  // why packets take its queue, "" if they do not
	mac     [6]byte // of the container's device, 0 if that is not known
	longest uint16  // as discover.Reception has it
}

// unknownPair is why packets take the queue of a container that is not identified.
const unknownPair = "it is not known how the container receives packets"

// changed reports whether a container may receive, or hand over packets, otherwise than was
// set.
func (d *delivery) changed(p *Port) bool {
	if p.Kind == discover.Netkit && d.dp.Mode() == "tcx" {
		has := d.netkitPrograms(p)
		if has.foreign != p.netkit.foreign || has.past != p.netkit.past || (has.past == "") != p.netkit.hooked {
			return true
		}
	}
	if p.pair == nil {
		return false
	}
	r, err := p.pair.Reception(d.links, p.MTU)
	return err == nil && !p.delivery.is(r)
}

// set reads and writes how a port delivers.
func (d *delivery) set(p *Port) {
	r, err := d.reception(p)
	d.write(p, r, err)
}

// write writes how a port delivers, as reception has found it. Decisions that were recorded
// since the change are stale.
func (d *delivery) write(p *Port, r discover.Reception, err error) {
	if errors.Is(err, discover.ErrGone) || errors.Is(err, unix.ENODEV) {
		d.log.Debug(deviceRemoved, "dev", p.Name, "error", err)
		return // as it was set until the port is unhooked
	}
	if err != nil { // in doubt
		r.Detour, r.Longest = err.Error(), discover.Longest(p.MTU)
		if p.delivery.queue != r.Detour {
			d.log.Error("reading how a container receives; its packets take the queue", "dev", p.Name, "error", err)
		}
	}
	if !p.delivery.is(r) {
		err := d.dp.Track(p.Index, datapath.Delivery{Queue: r.Detour != "", MAC: r.MAC, Longest: r.Longest})
		if d.hasConentries(p.Index) { // as a port that was just hooked has not
			d.newGeneration("the delivery at " + p.Name)
		}
		if err != nil {
			d.log.Error("setting the delivery at a port", "dev", p.Name, "error", err)
			return
		}
	}
	if p.delivery.queue != r.Detour {
		d.log.Debug("delivery", "dev", p.Name, "through_queue", r.Detour)
	}
	p.delivery = reception{r.Detour, r.MAC, r.Longest}
}

// is reports whether the programs know all that matters of r.
func (k reception) is(r discover.Reception) bool {
	return (r.Detour == "") == (k.queue == "") && r.MAC == k.mac && r.Longest == k.longest
}

// reception finds out how a container receives, and whether something at its
// port takes packets into its queue.
func (d *delivery) reception(p *Port) (r discover.Reception, err error) {
	if p.pair == nil {
		r.Detour, r.Longest = unknownPair, discover.Longest(p.MTU)
	} else if r, err = p.pair.Reception(d.links, p.MTU); err != nil {
		return r, err
	}
	if p.Kind == discover.Netkit {
		foreign, err := p.NetkitPrograms(d.dp.Programs())
		if err != nil {
			return r, err
		}
		if foreign != "" {
			r.Detour = foreign
			return r, nil
		}
	}
	shaped, err := p.ShapesEgress(d.dp.Programs())
	if shaped {
		r.Detour = "a qdisc or filter at " + p.Name
	}
	return r, err
}
