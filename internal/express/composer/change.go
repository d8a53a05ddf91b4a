package composer

import (
	"net/netip"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// deciding bounds the time to find out which Conentries a change of the rules
// concerns: nothing goes express meanwhile.
const deciding = 5 * time.Millisecond

// fewConcerned is how many Conentries are retired at most. More are cheaper to
// confirm by a packet each, with all others, than to compose again.
const fewConcerned = 64

// RulesChanged retires the Conentries that a change of the rules concerns. If these
// are too many, or are not found in time, it returns why every decision has to be
// confirmed.
func (c *Composer) RulesChanged(change *rules.Change, now time.Time) (everything string) {
	q := inquiry{Composer: c, change: change, may: make(map[common]bool)}
	start := time.Now()
	var concerned []*contable.Conentry
	seen := 0
	c.table.All(func(e *contable.Conentry) {
		if everything != "" {
			return
		}
		if q.concerns(e) {
			concerned = append(concerned, e)
		}
		if seen++; len(concerned) > fewConcerned {
			everything = "rules changed that concern many connections"
		} else if seen%64 == 0 && time.Since(start) > deciding {
			everything = "rules changed, and it takes long to find out which connections are concerned"
		}
	})
	if everything != "" {
		return everything
	}
	c.table.All(func(e *contable.Conentry) {
		if e.Bound == BoundByRule { // which may be gone, whether it matched or not
			e.Reading = c.reading - 1
		}
	})
	for _, e := range concerned {
		if c.keepByRule(subjectOf(e), e.Conn) {
			c.refuse(e.Port, PerPacketRule)
		}
		c.table.Retire(e, now)
		c.retired++
	}
	return ""
}

// Retired counts the Conentries that changes of rules concerned.
func (c *Composer) Retired() uint64 { return c.retired }

// inquiry finds out which Conentries a change concerns.
type inquiry struct {
	*Composer
	change *rules.Change
	may    map[common]bool // whether it may concern connections that have this in common
}

// common is what connections of a container have in common. Of few containers, and few
// addresses and ports at their other ends, there may be many connections.
type common struct {
	subject
	proto       uint8
	orig, reply netip.AddrPort // where it is opened to, and who answers, if that is known
	own         netip.Addr
}

// concerns reports whether the change may concern a Conentry.
func (q *inquiry) concerns(e *contable.Conentry) bool {
	s := subjectOf(e)
	if !s.untracked && e.Conn.Replied() {
		c := e.Conn
		of := common{subject: s, proto: c.Orig.Proto, own: c.Reply.Src.Addr()}
		if s.initiator {
			of.own = c.Orig.Src.Addr()
		}
		if !q.mayConcern(of) {
			return false
		}
		if of.orig, of.reply = c.Orig.Dst, c.Reply.Src; !q.mayConcern(of) {
			return false
		}
	}
	conn, ok := q.ask(s, e.Conn)
	return !ok || q.change.Concerns(conn)
}

// mayConcern asks about all connections that have something in common.
func (q *inquiry) mayConcern(of common) bool {
	may, known := q.may[of]
	if known {
		return may
	}
	var conn conntrack.Conn
	conn.Orig.Proto, conn.Reply.Proto = of.proto, of.proto
	conn.Orig.Dst, conn.Reply.Src = of.orig, of.reply
	own := netip.AddrPortFrom(of.own, 0)
	if of.initiator {
		conn.Orig.Src = own
	} else if !of.reply.IsValid() {
		conn.Reply.Src = own
	}
	asked, ok := q.ask(of.subject, conn)
	may = !ok || q.change.MayConcern(asked)
	q.may[of] = may
	return may
}
