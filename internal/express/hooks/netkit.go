package hooks

import (
	"errors"

	"golang.org/x/sys/unix"

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

// setNetkit hooks a netkit container's transmit call, or unhooks it, as its pair's
// programs are. It does nothing for other ports.
func (d *delivery) setNetkit(p *Port, has netkitPrograms) {
	if p.Kind != discover.Netkit || d.dp.Mode() != "tcx" {
		return
	}
	if errors.Is(has.err, unix.ENODEV) {
		d.log.Debug(deviceRemoved, "dev", p.Name, "error", has.err)
		return
	}
	if has.err != nil && has.past != p.netkit.past {
		d.log.Error("reading the programs of a netkit pair; its transmit call is not hooked", "dev", p.Name, "error", has.err)
	}
	if has.foreign != p.netkit.foreign {
		p.netkit.foreign = has.foreign
		d.set(p)
	}
	if err := d.hookNetkit(p, has.past); err != nil { // removed devices are announced
		d.log.Debug("hooking a netkit pair", "dev", p.Name, "error", err)
	}
	p.netkit.past = has.past
}

// hookNetkit hooks the transmit call if past is "", and unhooks it otherwise.
func (d *delivery) hookNetkit(p *Port, past string) error {
	switch {
	case past == "" && !p.netkit.hooked:
		if p.netkit.past != "" { // packets without a number may be in the queue
			d.newGeneration("the transmit call at " + p.Name)
		}
		if err := d.dp.Attach(datapath.FromNetkit, p.Index); err != nil {
			return err
		}
		p.netkit.hooked = true
	case past != "" && p.netkit.hooked:
		p.netkit.hooked = false
		return d.dp.Detach(datapath.FromNetkit, p.Index)
	}
	return nil
}

// netkitPrograms are the programs of others at a netkit pair, as netkit has them. What
// could not be read is assumed to have some: the error is its name.
type netkitPrograms struct {
	foreign, past string
	err           error
}

// netkitPrograms reads those of a port, none if it is no end of such a pair.
func (d *delivery) netkitPrograms(p *Port) (has netkitPrograms) {
	if p.Kind != discover.Netkit {
		return has
	}
	if has.foreign, has.err = p.NetkitPrograms(d.dp.Programs()); has.err != nil {
		has.foreign, has.past = has.err.Error(), has.err.Error()
		return has
	}
	if has.past, has.err = p.PastNetkit(d.dp.Programs()); has.err != nil {
		has.past = has.err.Error()
	}
	return has
}
