package composer

import (
	"math"
	"slices"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// Connections with the outside that conntrack does not see, because nothing has
// enabled it for their family or rules say notrack. That conntrack does not know a
// connection proves nothing: its packets may be INVALID, in a zone, or dropped. So
// the rules have to say that conntrack sees none of them. What becomes of the
// packets is observed as of all others.

// untracked reports whether conntrack certainly sees no packet of a connection of
// which a container sends tuple to the outside.
func (c *Composer) untracked(p *discover.Port, tuple conntrack.Tuple) bool {
	if !c.unseen(subject{port: p.Index, initiator: true, untracked: true}, conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}) {
		return false
	}
	oif := forwardedBy(tuple, p)
	return slices.ContainsFunc(c.ports.Outside(), func(dev rules.Device) bool { return dev.Index == oif })
}

func (c *Composer) unseen(s subject, conn conntrack.Conn) bool {
	asked, ok := c.ask(s, conn)
	return ok && c.rules.Untracked(asked)
}

// bridged reports whether a connection of which a container sends tuple may leave by its
// bridge, and conntrack sees no packet of it then. What of it IP forwards is not express.
func (c *Composer) bridged(p *discover.Port, tuple conntrack.Tuple) bool {
	if len(c.ports.Bridged(p)) == 0 || c.rules.TracksBridges() {
		return false
	}
	s := subject{port: p.Index, initiator: true, untracked: true, bridged: true}
	return !c.isShown(p, tuple.Src.Addr().Is4()) || c.unseen(s, conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()})
}

// isShown reports whether a port's bridge shows what it forwards to IP's hooks.
func (c *Composer) isShown(p *discover.Port, is4 bool) bool {
	if is4 {
		return c.leases.limits.BridgesCall4 || p.Calls4
	}
	return c.leases.limits.BridgesCall6 || p.Calls6
}

// maySee reports whether what the rules say may let conntrack see a Conentry's packets.
func (c *Composer) maySee(s subject, is4 bool) bool {
	if !s.untracked {
		return false
	}
	p, peer := c.ports.Port(s.port), c.ports.Port(s.peer)
	bridged := s.bridged || p != nil && peer != nil && p.Bridge.Index != 0 && p.Bridge.Index == peer.Bridge.Index
	return !bridged || p == nil || c.isShown(p, is4)
}

// composeUntracked places a Conentry for such a connection.
func (c *Composer) composeUntracked(s subject, tuple conntrack.Tuple, now time.Time) Refusal {
	p := c.ports.Port(s.port)
	if why := unfitAddrs(tuple); why != "" {
		return why
	}
	conn := conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
	if c.keepByRule(s, conn) {
		return PerPacketRule
	}
	c.table.RetireDiscardOf(p.Index, tuple)
	here := c.end(p, tuple.Src.Addr())
	if s.bridged {
		here.Bridge = 0
	}
	e, err := c.table.ComposeUntracked(here, tuple, now)
	if err == nil {
		delete(c.ends, tuple) // it waits for no other end
		c.composed++
		c.placed(e)
		c.decideLease(e, c.table.Conn(e))
	}
	return tableRefusal(err)
}

// RetireTracked removes the Conentries of untracked connections that conntrack may see
// now: all of them, if it takes long to find out which these are. It is called
// when rules, or the devices that they may name, have changed so that it may see others.
func (c *Composer) RetireTracked(now time.Time) {
	q := inquiry{Composer: c, change: seen{c.rules}, start: time.Now(), most: math.MaxInt}
	if c.index.partial {
		q.everything = "there are many connections"
	}
	for kind, all := range c.index.kinds {
		if c.maySee(kind.subject, kind.is4) {
			q.askAll(kind, all)
		}
	}
	if q.everything != "" {
		q.concerned = q.concerned[:0]
		for _, ref := range c.recheck.waiting {
			if e := c.table.Live(ref); e != nil && c.maySee(subjectOf(e), c.table.Orig(e).Src.Addr().Is4()) {
				q.concerned = append(q.concerned, e)
			}
		}
	}
	for _, e := range q.concerned {
		c.table.Retire(e)
	}
}

// seen is a change that concerns the connections that conntrack may see.
type seen struct{ rules Rules }

func (s seen) MayConcern(c rules.Conn) bool { return !s.rules.Untracked(c) }
func (s seen) Concerns(c rules.Conn) bool   { return s.MayConcern(c) }
