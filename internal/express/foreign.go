package express

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/host/changes"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// Programs of tcx and XDP that others attach are not announced: they are looked
// for once a second. Those at an ingress run before SCON's, those at an egress after
// it; where others have taken its place, SCON's moves.

// place is one side of a device, where programs run.
type place struct {
	ifindex int
	at      ebpf.AttachType
}

// programs are what others run at a place.
type programs struct {
	revision uint64
	foreign  string
	moves    int // of SCON's own, each within calm of the one before
	moved    time.Time
}

// mostMoves is how often SCON's program moves before the device is left to the
// others, and calm is how long nobody has to take its place for a fresh start.
const (
	mostMoves = 5
	calm      = time.Minute
)

// places are the places of devices that packets of containers pass, and
// SCON's hook there, if there is one.
func (d *Daemon) places() map[place]*datapath.Hook {
	hooks := [...]datapath.Hook{datapath.FromContainer, datapath.ToContainer, datapath.FromWire, datapath.ToWire}
	all := make(map[place]*datapath.Hook)
	add := func(ifindex int, ingress, egress *datapath.Hook) {
		all[place{ifindex, ebpf.AttachTCXIngress}] = ingress
		all[place{ifindex, ebpf.AttachTCXEgress}] = egress
	}
	for _, inside := range d.policy.inside {
		for _, dev := range inside {
			add(dev.Index, nil, nil)
		}
	}
	for index := range d.policy.contested {
		add(index, nil, nil)
	}
	for index := range d.devices.ports {
		add(index, &hooks[0], &hooks[1])
	}
	for index := range d.devices.uplinks {
		add(index, &hooks[2], &hooks[3])
	}
	return all
}

// lookAtPrograms finds programs of others that have come or gone. Until then
// express packets may have skipped them.
func (d *Daemon) lookAtPrograms(when time.Time) {
	p := &d.policy
	places := d.places()
	maps.DeleteFunc(p.programs, func(at place, _ programs) bool {
		_, there := places[at]
		return !there
	})
	changed := ""
	for at, hook := range places {
		seen := p.programs[at]
		now, current, err := d.dp.Programs().Arranged(at.ifindex, at.at, seen.revision)
		if current || err != nil { // a device that is gone is heard of
			continue
		}
		if foreign := names(now.Foreign()); foreign != seen.foreign {
			changed = fmt.Sprintf("programs at device %d: %s", at.ifindex, cmp.Or(foreign, "none"))
			seen.foreign = foreign
		}
		if hook != nil && !now.Own && d.dp.Mode() == "tcx" {
			changed = fmt.Sprintf("SCON's program is gone from device %d", at.ifindex)
		}
		switch ousters := now.Ousters(at.at); {
		case hook == nil && seen.foreign == "":
			delete(p.contested, at.ifindex)
		case hook == nil || len(ousters) == 0:
		case seen.mayMove(when):
			d.move(*hook, at.ifindex)
		default:
			p.contested[at.ifindex] = "the place of SCON's program is taken again and again by " + names(ousters)
			changed = "a contested place"
		}
		seen.revision = now.Revision
		p.programs[at] = seen
	}
	for _, inside := range p.inside {
		for _, dev := range inside {
			if l, err := netlink.LinkByIndex(dev.Index); err == nil && hasXDP(l) != p.xdp[dev.Index] {
				changed = "XDP at " + dev.Name
			}
		}
	}
	if changed == "" {
		return
	}
	d.stale(changes.Event{Kind: changes.Filter, Reason: changed})
	d.devices.outdated.all = true
	d.look()
}

// hasXDP tells whether a device has an XDP program, of whatever kind.
func hasXDP(l netlink.Link) bool {
	return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
}

// restore attaches the hooks anew that are missing: whoever deletes all filters
// of a device deletes SCON's.
func (d *Daemon) restore(attached []datapath.Attached) {
	there := make(map[datapath.Attached]bool, len(attached))
	for _, a := range attached {
		there[a] = true
	}
	attach := func(ifindex int, hooks []datapath.Hook) {
		for _, h := range hooks {
			if there[datapath.Attached{Hook: h, Ifindex: ifindex}] {
				continue
			}
			if err := d.dp.Attach(h, ifindex); err != nil { // a device that is gone is heard of
				d.log.Debug("putting a hook back", "error", err)
			}
		}
	}
	for index, p := range d.devices.ports {
		attach(index, p.hooks())
	}
	for index := range d.devices.uplinks {
		attach(index, datapath.UplinkHooks)
	}
}

// mayMove counts a move, if there have not been too many.
func (p *programs) mayMove(now time.Time) bool {
	if now.Sub(p.moved) > calm {
		p.moves = 0
	}
	p.moves, p.moved = p.moves+1, now
	return p.moves <= mostMoves
}

// move puts SCON's program back into its place among others.
func (d *Daemon) move(h datapath.Hook, ifindex int) {
	err := d.dp.Detach(h, ifindex)
	if err == nil {
		err = d.dp.Attach(h, ifindex)
	}
	if err != nil {
		d.log.Error("moving a program behind others", "ifindex", ifindex, "error", err)
	}
}

// names lists programs.
func names(all []tcfilter.Program) string {
	var words []string
	for _, p := range all {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}
