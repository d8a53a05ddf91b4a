package express

import (
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// The flusher (scon.txt, section V-B4) in what the table's own sweep for idle
// Conentries does not see.

// destroyed follows conntrack: what leaves its table leaves ours.
func (d *Daemon) destroyed(gone conntrack.Destroyed) {
	if gone.Overrun {
		// Each Conentry is seen to pass the regular way again, and asked for as
		// the beats allow.
		d.counts.overruns++
		d.newGeneration("conntrack's messages were lost")
		d.unannounced.doubt(d.table)
		return
	}
	if e := d.table.Lookup(gone.Orig); e != nil && e.Conn.ID == gone.ID {
		d.table.Retire(e, time.Now())
	}
}

// flush retires the Conentries of one port, or of all if it is nil.
func (d *Daemon) flush(p *port) int {
	now := time.Now()
	n := d.retireDiscards(p, now)
	d.table.All(func(e *contable.Conentry) {
		if p == nil || e.Has(p.Index) {
			d.table.Retire(e, now)
			n++
		}
	})
	return n
}
