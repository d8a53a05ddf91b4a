package express

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// Connections between two containers. That the other end is one, too, its own
// packets tell: the programs announce it at its port. Nothing is concluded from
// addresses.

// oneEnd is a candidate that conntrack does not know: if the other end is a
// container as well, its packets are a candidate soon.
type oneEnd struct {
	port int
	at   time.Time
}

// endPatience is how long one end is remembered, and mostEnds how many are.
const (
	endPatience = 10 * time.Second
	mostEnds    = 4096
)

// end is where packets of a container with an address enter. Of several devices
// that IP may see them come by, it is the one that leads to that address.
func (d *Daemon) end(p *port, addr netip.Addr) contable.End {
	inside, _ := p.Inside()
	if devices := d.policy.insideOf(p); len(devices) > 1 {
		routes, err := netlink.RouteGet(addr.AsSlice())
		if err == nil && slices.ContainsFunc(devices, func(dev rules.Device) bool { return dev.Index == routes[0].LinkIndex }) {
			inside = routes[0].LinkIndex
		}
	}
	return contable.End{Port: p.Index, Bridge: inside}
}

// join takes up that packets of a connection with a Conentry, tuple, enter at a port, or
// says why it stays regular. As long as no decision was seen, the other end may
// turn out to be a container.
func (d *Daemon) join(e *contable.Conentry, p *port, tuple conntrack.Tuple, now time.Time) (refused string) {
	if e.Has(p.Index) || !d.table.Undecided(e) {
		return "" // heard of in the meantime, or somebody uses others' addresses
	}
	if !p.candidates.allow(now, candidatesPerSecond, candidatesAtOnce) {
		return refusedRate
	}
	here := d.devices.ports[e.Port]
	if e.Peer != 0 || here == nil || p.paused {
		d.table.Retire(e, now)
		return ""
	}
	k := keptAs(e)
	k.peer = p.Index
	if rule, touched := d.touches(k, e.Conn); touched {
		d.keepRegular(k, e.Conn, rule)
		d.table.Retire(e, now)
		return refusedRule
	}
	if err := d.table.Join(e, d.end(p, tuple.Src.Addr())); err != nil {
		d.table.Retire(e, now)
		return refusedFor(err)
	}
	return ""
}

// pair places a Conentry for a connection that conntrack does not know, if both
// ends are containers whose packets have been announced.
func (d *Daemon) pair(p *port, tuple conntrack.Tuple, now time.Time) (refused string, both bool) {
	other := d.ends[tuple.Reverse()]
	there := d.devices.ports[other.port]
	if there == nil || there == p || now.Sub(other.at) > endPatience {
		if len(d.ends) >= mostEnds {
			clear(d.ends)
		}
		d.ends[tuple] = oneEnd{p.Index, now}
		return "", false
	}
	delete(d.ends, tuple.Reverse())
	if why := unfitAddrs(tuple); why != "" {
		return why, true
	}
	if there.paused {
		return refusedPaused, true
	}
	conn := conntrack.Conn{Orig: tuple.Reverse(), Reply: tuple}
	k := keptConn{port: there.Index, peer: p.Index, initiator: true, untracked: true}
	if rule, touched := d.touches(k, conn); touched {
		d.keepRegular(k, conn, rule)
		return refusedRule, true
	}
	d.table.RetireDiscardOf(p.Index, tuple, now)
	d.table.RetireDiscardOf(there.Index, tuple.Reverse(), now)
	e, err := d.table.Pair(d.end(there, conn.Orig.Src.Addr()), d.end(p, tuple.Src.Addr()), conn.Orig, now)
	if err != nil {
		d.ends[tuple] = oneEnd{p.Index, now} // a slot may be free soon
		return refusedFor(err), true
	}
	d.counts.composed++
	d.unannounced.add(e)
	return "", true
}

// refusedFor names why the table refuses a connection, "" if it may be tried again.
func refusedFor(err error) string {
	switch {
	case errors.Is(err, contable.ErrFull):
		return refusedFull
	case errors.Is(err, contable.ErrShare):
		return refusedShare
	}
	return ""
}
