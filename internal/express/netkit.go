package express

import (
	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
)

// A netkit container's packets can leave its own transmit call. Then they do not
// pass the ingress of its port: while somebody has a program there, they do. Such
// programs, and those of the pair itself, are not announced: they are looked for
// once a second.

// hasShortcut tells whether packets of a container can leave its transmit call.
func (d *Daemon) hasShortcut(p *port) bool {
	return p.Kind == discover.Netkit && d.dp.Mode() == "tcx"
}

// lookAtNetkit hooks a netkit container's transmit call, or lets go of it.
func (d *Daemon) lookAtNetkit(p *port) {
	if !d.hasShortcut(p) {
		return
	}
	foreign, err := p.NetkitPrograms(d.dp.Programs())
	if err == nil && foreign != p.netkitForeign {
		p.netkitForeign = foreign
		d.setDelivery(p)
	}
	past := ""
	if err == nil {
		past, err = p.PastNetkit(d.dp.Programs())
	}
	switch {
	case err != nil:
	case past == "" && !p.shortcut:
		if p.past != "" { // packets without a number may be in the queue
			d.newGeneration("the transmit call at " + p.Name)
		}
		if err = d.dp.Attach(datapath.FromNetkit, p.Index); err == nil {
			p.shortcut = true
		}
	case past != "" && p.shortcut:
		p.shortcut = false
		err = d.dp.Detach(datapath.FromNetkit, p.Index)
	}
	p.past = past
	if err != nil { // a device that is gone is heard of
		d.log.Debug("looking at a netkit pair", "dev", p.Name, "error", err)
	}
}

// hooks are those at a port.
func (p *port) hooks() []datapath.Hook {
	if p.shortcut {
		return append([]datapath.Hook{datapath.FromNetkit}, datapath.PortHooks...)
	}
	return datapath.PortHooks
}

// explainNetkit says where packets leave a netkit container.
func (d *Daemon) explainNetkit(p *port) []api.Finding {
	switch {
	case p.shortcut:
		return []api.Finding{{Level: "ok", What: "its device is a netkit pair: express packets leave its own transmit call"}}
	case p.past != "":
		return []api.Finding{{
			Level: "note", What: "its device is a netkit pair, but express packets go through the port's queue",
			Why: p.past + " must see every packet",
		}}
	default:
		return nil
	}
}
