package composer

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// Discards (Confilter -1, section V-B2 of the paper): connections that conntrack
// does not know because the rules drop every packet. Two conditions must hold:
// the rules certainly drop them, and the kernel is seen to drop one packet in
// each short lease.

// discard places a discard for a connection that conntrack does not know, if the
// rules drop it.
func (c *Composer) discard(p *discover.Port, tuple conntrack.Tuple, now time.Time) Refusal {
	if c.dropped == nil || !c.discardable(p, tuple, now) {
		return Untracked
	}
	switch err := c.table.Discard(p.Index, p.MAC, tuple, now); {
	case errors.Is(err, contable.ErrFull):
		return TableFull
	case errors.Is(err, contable.ErrShare):
		return ShareUsed
	}
	return ""
}

func (c *Composer) discardable(p *discover.Port, tuple conntrack.Tuple, now time.Time) bool {
	if !c.account(p.Index).droppable.allow(now, droppablePerSecond, droppableAtOnce) {
		return false
	}
	return c.dropped(rules.Flow{
		Tuple:     tuple,
		Port:      deviceOf(p),
		Inside:    c.ports.Inside(p),
		Routed:    p.Routed(),
		Forwarded: forwardedBy(tuple, p) != 0,
	})
}

// forwardedBy returns the device by which a packet of the container behind a port is
// routed to another host, 0 if it is not.
func forwardedBy(tuple conntrack.Tuple, p *discover.Port) (ifindex int) {
	inside, _ := p.Inside()
	routes, err := netlink.RouteGetWithOptions(tuple.Dst.Addr().AsSlice(), &netlink.RouteGetOptions{
		IifIndex: inside, SrcAddr: tuple.Src.Addr().AsSlice(),
	})
	if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_UNICAST {
		return 0
	}
	return routes[0].LinkIndex
}

// RetireDiscards removes all discards. After a change of rules or routes their
// packets may no longer be dropped.
func (c *Composer) RetireDiscards(now time.Time) { c.retireDiscards(allPorts) }

// retireDiscards removes those of one port, or of allPorts, and counts them.
func (c *Composer) retireDiscards(port int) (n int) {
	c.table.Discards(func(e *contable.Discard, _ contable.Discarded) {
		if port == allPorts || e.Port == port {
			c.table.RetireDiscard(e)
			n++
		}
	})
	return n
}
