package composer

import (
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

// Connections that may reach a rule which judges single packets stay regular, and those of
// which a queue asks what express packets lack.

// subject is what the rules are asked about, beside the connection itself.
type subject struct {
	port      int
	peer      int  // port of the container at the other end, 0 if there is none
	initiator bool // the container opened the connection
	untracked bool // conntrack does not see it
	bridged   bool // IP does not, either
}

// subjectOf is that of a Conentry.
func subjectOf(e *contable.Conentry) subject {
	return subject{port: e.Port(), peer: e.Peer(), initiator: e.Initiator(), untracked: e.Untracked, bridged: e.Bridged}
}

// maxKept bounds Composer.kept, the latest connections that a rule kept regular.
// Only `scon explain` reads it.
const maxKept = 4096

// keepByRule reports whether a rule keeps a connection regular, and remembers it if so: not
// where the rule does so only until the connection is assured.
func (c *Composer) keepByRule(s subject, conn conntrack.Conn) bool {
	rule, touched := c.touches(s, conn)
	if !touched {
		return false
	}
	if !conn.Assured() && conn.Confirmed() {
		if _, touched = c.touches(s, conn.AsAssured()); !touched {
			return true
		}
	}
	c.judge(s.port, directionOf(conn, s.initiator), judged{rule: rule, subject: s, conn: conn})
	if s.peer != 0 {
		c.judge(s.peer, directionOf(conn, !s.initiator), judged{rule: rule, subject: s, conn: conn})
	}
	if len(c.kept) >= maxKept {
		clear(c.kept)
	}
	c.kept[conn.Orig] = s
	return true
}

// directionOf is the direction of the packets of the end that opened a connection, or of
// the other one.
func directionOf(conn conntrack.Conn, initiator bool) conntrack.Tuple {
	if initiator {
		return conn.Orig
	}
	return conn.Reply
}

// judged is a connection that a rule keeps regular.
type judged struct {
	rule    rules.Rule
	subject subject
	conn    conntrack.Conn
	until   time.Time // when no rule was found to do so any more, zero if one does
}

// judge takes that for the latest one of the container behind a port, where packets of
// tuple enter.
func (c *Composer) judge(port int, tuple conntrack.Tuple, j judged) {
	c.account(port).judged = j
	c.table.Judged(tuple, port)
	c.setKept(port)
}

// Rejudge asks, of each container, which rule keeps its latest connection regular that one
// has kept so, and has all such connections become candidates again. It is called when the
// rules, or the devices that they may name, have changed.
func (c *Composer) Rejudge(now time.Time) {
	kept := false
	for port, a := range c.accounts {
		j := &a.judged
		if j.rule == (rules.Rule{}) {
			continue
		}
		kept = true
		switch rule, touched := c.touches(j.subject, j.conn); {
		case touched:
			j.rule, j.until = rule, time.Time{}
		case j.until.IsZero():
			j.until = now
		}
		c.setKept(port)
	}
	if kept {
		c.table.JudgeAnew()
	}
}

// KeptBy returns the rule that keeps a connection regular now, if one was found
// to before.
func (c *Composer) KeptBy(conn conntrack.Conn) (rule rules.Rule, kept bool) {
	s, ok := c.kept[conn.Orig]
	if !ok {
		return rule, false
	}
	return c.touches(s, conn)
}

// touches finds a rule that judges single packets and that a connection of a
// container may reach.
func (c *Composer) touches(s subject, conn conntrack.Conn) (rules.Rule, bool) {
	asked, ok := c.ask(s, conn)
	if !ok {
		return rules.Rule{}, false
	}
	if q := c.ports.Asks(); q.At != "" && (q.All || conn.Translated()) {
		return rules.Queue(q.At), true
	}
	return c.rules.Touches(asked)
}

// ask is what the rules are asked about a connection; ok is false if an end of it
// is gone.
func (c *Composer) ask(s subject, conn conntrack.Conn) (asked rules.Conn, ok bool) {
	p, peer := c.ports.Port(s.port), c.ports.Port(s.peer)
	if p == nil || s.peer != 0 && peer == nil {
		return asked, false
	}
	asked = rules.Conn{
		Conn:    conn,
		Port:    deviceOf(p),
		Inside:  c.ports.Inside(p),
		Outside: c.ports.Outside(),
		Bridged: c.ports.Bridged(p),
		Replies: !s.initiator,

		Untracked: s.untracked,
	}
	if peer != nil {
		asked.Peer = deviceOf(peer)
		asked.Outside, asked.Bridged = c.ports.Inside(peer), nil
	}
	return asked, true
}

func deviceOf(p *discover.Port) rules.Device { return rules.Device{Name: p.Name, Index: p.Index} }

// RetireTouched removes the Conentries that a rule may touch which judges single
// packets. It is called when the rules, or the devices that they may name, have changed.
func (c *Composer) RetireTouched(now time.Time) {
	if c.rules.IsSilent() || c.rules.HasLegacy() {
		c.shorten()
	} else {
		c.leases.reading++
	}
	if !c.rules.Judges() && c.ports.Asks().At == "" {
		return
	}
	c.table.All(func(e *contable.Conentry) {
		if c.keepByRule(subjectOf(e), c.table.Conn(e)) {
			c.refuse(e.Port(), PerPacketRule)
			c.table.Retire(e)
		}
	})
}
