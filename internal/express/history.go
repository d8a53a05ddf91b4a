package express

import (
	"time"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/history"
)

// remember ends a point of the history, in the loop, at the end of a sweep: it has just
// counted the express packets. At any other time clients that have them counted in between
// would make points empty and others twice as large.
func (d *Daemon) remember(now time.Time) {
	regular, err := d.dp.RegularPackets()
	if err != nil {
		d.log.Debug("no point of the history", "error", err)
		return
	}
	byPort, sum := d.table.Totals()
	machine := api.Traffic{ExpressPackets: sum.Packets, ExpressBytes: sum.Bytes, RegularPackets: d.hooks.PastRegular()}
	ports := make(map[int]history.Port, len(d.hooks.Ports()))
	for index, p := range d.hooks.Ports() {
		express := byPort[index]
		machine.RegularPackets += regular[index]
		ports[index] = history.Port{
			Name: p.Container.Name, ID: p.Container.ID, Dev: p.Name,
			Traffic: api.Traffic{ExpressPackets: express.Packets, ExpressBytes: express.Bytes, RegularPackets: regular[index]},
		}
	}
	d.history.Add(now, machine, ports)
}

// History returns the points that end after a time, of a container or of the machine.
func (b backend) History(container string, since time.Time) (api.History, error) {
	return inLoop(b, func(d *Daemon) (h api.History, err error) {
		if h = d.history.Of(container, since); container != "" && len(h.Containers) == 0 {
			_, err = d.view().portsOf(container)
		}
		return h, err
	})
}
