package composer

import (
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// Connections between two containers. The other end is known to be a container
// only by its own packets, which the programs announce at its port. Addresses
// prove nothing.

// oneEnd is a candidate that conntrack does not know. If the other end is a
// container as well, its packets become a candidate soon.
type oneEnd struct {
	port int
	at   time.Time
}

// How long one end waits for the other, and how many may wait.
const (
	endTimeout = 10 * time.Second
	maxEnds    = 4096
)

// end is where packets of a container with an address enter. Of several devices
// by which IP may see them come, it is the one with the route to that address.
func (c *Composer) end(p *discover.Port, addr netip.Addr) contable.End {
	inside, _ := p.Inside()
	if devices := c.ports.Inside(p); len(devices) > 1 {
		routes, err := netlink.RouteGet(addr.AsSlice())
		if err == nil && slices.ContainsFunc(devices, func(dev rules.Device) bool { return dev.Index == routes[0].LinkIndex }) {
			inside = routes[0].LinkIndex
		}
	}
	return contable.End{Port: p.Index, Bridge: inside}
}

// waits reports whether an end has been announced before and waits for the other one.
func (c *Composer) waits(p *discover.Port, tuple conntrack.Tuple) bool {
	return c.ends[tuple].port == p.Index
}

// join takes a candidate that has a Conentry already: packets of tuple enter at
// the port p. While no decision was seen, the other end may prove to be a
// container. It returns who pays for that, and why the connection stays regular, if it does.
func (c *Composer) join(e *contable.Conentry, p *discover.Port, tuple conntrack.Tuple, now time.Time) (payers, Refusal) {
	if e.Has(p.Index) {
		return nil, "" // announced before the Conentry was placed
	}
	if !c.table.Undecided(e) { // the container has another way out now, or the addresses are forged
		c.table.Stray(e, contable.Elsewhere{Port: p.Index, Tuple: tuple, At: now})
		return nil, ""
	}
	a := c.account(p.Index)
	payers, why := c.allow(a, now)
	if why != "" {
		return nil, why
	}
	if e.Untracked || e.Peer() != 0 || c.ports.Port(e.Port()) == nil || a.paused {
		c.table.Retire(e)
		c.ends[tuple] = oneEnd{p.Index, now} // the other one is announced again
		return payers, ""
	}
	s := subjectOf(e)
	s.peer = p.Index
	if c.keepByRule(s, c.table.Conn(e)) {
		c.table.Retire(e)
		return payers, PerPacketRule
	}
	if err := c.table.Join(e, c.end(p, tuple.Src.Addr())); err != nil {
		c.table.Retire(e)
		return payers, tableRefusal(err)
	}
	if e.Lease() != 0 { // else release is about to give it one
		c.outdate(e)
	}
	c.index.add(e, c.table.Conn(e))
	return payers, ""
}

// pair places a Conentry for a connection that conntrack does not know, if both
// ends are containers whose packets have been announced; both reports that.
func (c *Composer) pair(p *discover.Port, tuple conntrack.Tuple, now time.Time) (why Refusal, both bool) {
	other := c.ends[tuple.Reverse()]
	there := c.ports.Port(other.port)
	if there == nil || there == p || now.Sub(other.at) > endTimeout {
		if len(c.ends) >= maxEnds {
			clear(c.ends)
		}
		c.ends[tuple] = oneEnd{p.Index, now}
		return "", false
	}
	delete(c.ends, tuple.Reverse())
	if why := unfitAddrs(tuple); why != "" {
		return why, true
	}
	if c.IsPaused(there.Index) {
		return Paused, true
	}
	conn := conntrack.Conn{Orig: tuple.Reverse(), Reply: tuple}
	if c.keepByRule(subject{port: there.Index, peer: p.Index, initiator: true, untracked: true}, conn) {
		return PerPacketRule, true
	}
	c.table.RetireDiscardOf(p.Index, tuple)
	c.table.RetireDiscardOf(there.Index, tuple.Reverse())
	e, err := c.table.Pair(c.end(there, conn.Orig.Src.Addr()), c.end(p, tuple.Src.Addr()), conn.Orig, now)
	if err != nil {
		c.ends[tuple] = oneEnd{p.Index, now} // a slot may be free soon
		return tableRefusal(err), true
	}
	c.composed++
	c.placed(e)
	c.decideLease(e, conn)
	return "", true
}
