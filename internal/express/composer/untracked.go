package composer

import (
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

// composeUntracked places a Conentry for such a connection.
func (c *Composer) composeUntracked(p *discover.Port, tuple conntrack.Tuple, now time.Time) Refusal {
	if why := unfitAddrs(tuple); why != "" {
		return why
	}
	conn := conntrack.Conn{Orig: tuple, Reply: tuple.Reverse()}
	if c.keepByRule(subject{port: p.Index, initiator: true, untracked: true}, conn) {
		return PerPacketRule
	}
	c.table.RetireDiscardOf(p.Index, tuple, now)
	e, err := c.table.ComposeUntracked(c.end(p, tuple.Src.Addr()), tuple, now)
	if err == nil {
		delete(c.ends, tuple) // it waits for no other end
		c.composed++
		c.let(e, e.Conn)
		c.placed(e)
	}
	return tableRefusal(err)
}

// RetireTracked removes the Conentries of connections with the outside that conntrack
// may see now. It is called after every change of the rules.
func (c *Composer) RetireTracked(now time.Time) {
	for _, e := range c.recheck.waiting {
		if e.Untracked && e.Peer == 0 && !c.unseen(subjectOf(e), e.Conn) {
			c.table.Retire(e, now)
		}
	}
}
