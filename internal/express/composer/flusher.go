package composer

import (
	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// The flusher (section V-B4 of the paper), except for idle Conentries, which
// contable.Table.Sweep finds.

// allPorts stands for every port.
const allPorts = 0

// Destroyed removes the Conentry of a connection that has left conntrack.
func (c *Composer) Destroyed(gone conntrack.Destroyed) {
	if e := c.table.Lookup(gone.Orig); e != nil && c.table.Conn(e).ID == gone.ID {
		c.table.Retire(e)
	}
}

// Flush removes the Conentries and discards of one port, and counts them.
func (c *Composer) Flush(port int) int { return c.flush(port) }

// FlushAll removes all Conentries and discards, and counts them.
func (c *Composer) FlushAll() int { return c.flush(allPorts) }

func (c *Composer) flush(port int) int {
	n := c.retireDiscards(port)
	c.table.All(func(e *contable.Conentry) {
		if port == allPorts || e.Has(port) {
			c.table.Retire(e)
			n++
		}
	})
	return n
}

// ForgetPort forgets a port that is no longer hooked, with its Conentries.
func (c *Composer) ForgetPort(port int) {
	c.table.ForgetPort(port)
	delete(c.accounts, port)
}
