package daemon

import (
	"time"

	"github.com/scon-project/scon/internal/conntrack"
	"github.com/scon-project/scon/internal/contable"
)

// The flusher (scon.txt, section V-B4) in what the table's own sweep for idle
// Conentries does not see.

// destroyed follows conntrack: what leaves its table leaves ours.
func (d *Daemon) destroyed(gone conntrack.Destroyed) {
	if gone.Overrun {
		d.verify()
		return
	}
	if e := d.table.Lookup(gone.Orig); e != nil && e.Conn.ID == gone.ID {
		d.table.Retire(e, time.Now())
	}
}

// verify asks conntrack about every Conentry, after the kernel had to drop
// messages about the end of connections.
func (d *Daemon) verify() {
	d.newGeneration("conntrack's messages were lost")
	now := time.Now()
	d.table.All(func(e *contable.Conentry) { d.confirm(e, now) })
}

// flush retires the Conentries of one port, or of all if it is nil.
func (d *Daemon) flush(p *port) int {
	now, n := time.Now(), 0
	d.table.All(func(e *contable.Conentry) {
		if p == nil || e.Port == p.Index {
			d.table.Retire(e, now)
			n++
		}
	})
	return n
}
