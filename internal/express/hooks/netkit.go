package hooks

import (
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// Express packets of a netkit container can leave from its own transmit call.
// They then skip the ingress of its port, so they do not while a program of
// others is there. Such programs, and those of the pair itself, are not
// announced: they are polled once a second.

// netkit is what is known of a port that is an end of a netkit pair.
type netkit struct {
	hooked  bool   // the container's transmit call is hooked
	past    string // which program express packets would skip if it were
	foreign string // programs of others at the pair's end on the host
}

// Netkit reports whether express packets leave from the transmit call of a netkit
// container; past is which program they would skip if they did.
func (p *Port) Netkit() (hooked bool, past string) { return p.netkit.hooked, p.netkit.past }

// Hooks are those at a port.
func (p *Port) Hooks() []datapath.Hook {
	if p.netkit.hooked {
		return append([]datapath.Hook{datapath.FromNetkit}, datapath.PortHooks...)
	}
	return datapath.PortHooks
}

// setNetkit hooks a netkit container's transmit call, or unhooks it. It does
// nothing for other ports.
func (d *delivery) setNetkit(p *Port) {
	if p.Kind != discover.Netkit || d.dp.Mode() != "tcx" {
		return
	}
	foreign, err := p.NetkitPrograms(d.dp.Programs())
	if err == nil && foreign != p.netkit.foreign {
		p.netkit.foreign = foreign
		d.set(p)
	}
	past := ""
	if err == nil {
		past, err = p.PastNetkit(d.dp.Programs())
	}
	switch {
	case err != nil:
	case past == "" && !p.netkit.hooked:
		if p.netkit.past != "" { // packets without a number may be in the queue
			d.newGeneration("the transmit call at " + p.Name)
		}
		if err = d.dp.Attach(datapath.FromNetkit, p.Index); err == nil {
			p.netkit.hooked = true
		}
	case past != "" && p.netkit.hooked:
		p.netkit.hooked = false
		err = d.dp.Detach(datapath.FromNetkit, p.Index)
	}
	p.netkit.past = past
	if err != nil { // removed devices are announced
		d.log.Debug("hooking a netkit pair", "dev", p.Name, "error", err)
	}
}
