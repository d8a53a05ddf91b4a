package composer

import (
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
)

// recheck polls conntrack about connections whose end the kernel does not
// announce. With the usual setting of nf_conntrack_events the kernel prepares a
// connection for the announcement only if a listener exists when the connection
// begins, so those older than the daemon are polled.
type recheck struct {
	every   bool                // conntrack did not announce all ends at some time
	older   map[uint32]struct{} // connections that began before the daemon, by their IDs
	waiting []contable.Ref      // polled in this order, round and round
	// marked are those whose mark in conntrack a rule depends on, polled in turns as well:
	// mostMarked at most, so that each is looked at within a second.
	marked []contable.Ref
	// doubted are those whose end may have been announced in a lost message.
	// They are polled first, and once.
	doubted []contable.Ref
}

// polledAtOnce bounds the questions to conntrack between two heartbeats: about
// 5 ms. It is the same again for the marks of mostMarked connections.
const (
	polledAtOnce = 200
	mostMarked   = 1000
)

// ListOlder lists the connections that exist when the daemon has begun to
// listen. It is called once, before Adopt.
func (c *Composer) ListOlder() error {
	c.recheck.older = make(map[uint32]struct{})
	return c.ct.Dump(func(conn conntrack.Conn) { c.recheck.older[conn.ID] = struct{}{} })
}

// add polls a new Conentry if its end would not be announced, or if conntrack
// may begin to track it.
func (r *recheck) add(e *contable.Conentry, id uint32) {
	if _, old := r.older[id]; old || r.every || e.Untracked {
		r.waiting = append(r.waiting, e.Ref())
	}
}

// watchMark has a Conentry's mark looked at once a second, and reports false if there are
// too many of which it is. A container may have half of what the others have left.
func (r *recheck) watchMark(e *contable.Conentry, live func(contable.Ref) *contable.Conentry) bool {
	own := 0
	for _, ref := range r.marked {
		if ref == e.Ref() {
			return true
		}
		if other := live(ref); other != nil && other.Port() == e.Port() {
			own++
		}
	}
	if own >= (mostMarked-(len(r.marked)-own))/2 {
		return false
	}
	r.marked = append(r.marked, e.Ref())
	return true
}

// nextMarked takes the next Conentries whose mark is to be looked at. It forgets those that
// are gone, and all of them if no rule depends on it any more.
func (r *recheck) nextMarked(silent bool, live func(contable.Ref) *contable.Conentry) (next []*contable.Conentry) {
	for n := len(r.marked); n > 0 && len(next) < polledAtOnce; n-- {
		ref := r.marked[0]
		r.marked = r.marked[1:]
		if e := live(ref); silent && e != nil {
			next = append(next, e)
			r.marked = append(r.marked, ref)
		}
	}
	return next
}

// Doubt polls every Conentry once: announcements of ends were lost.
func (c *Composer) Doubt() {
	c.recheck.doubted = make([]contable.Ref, 0, c.table.Len())
	c.table.All(func(e *contable.Conentry) { c.recheck.doubted = append(c.recheck.doubted, e.Ref()) })
}

// next takes the next Conentries to poll: those in doubt, and those that wait
// and have to be added again. It leaves out those that are gone.
func (r *recheck) next(live func(contable.Ref) *contable.Conentry) (doubted, waiting []*contable.Conentry) {
	for ; len(r.doubted) > 0 && len(doubted) < polledAtOnce; r.doubted = r.doubted[1:] {
		if e := live(r.doubted[0]); e != nil {
			doubted = append(doubted, e)
		}
	}
	for ; len(r.waiting) > 0 && len(doubted)+len(waiting) < polledAtOnce; r.waiting = r.waiting[1:] {
		if e := live(r.waiting[0]); e != nil {
			waiting = append(waiting, e)
		}
	}
	return doubted, waiting
}

// Recheck polls conntrack about the next few Conentries whose end is not
// announced. The loop calls it at each heartbeat.
func (c *Composer) Recheck(now time.Time) {
	if !c.recheck.every && (c.leases.limits.HidesEnds || c.rules.HidesEnds()) {
		c.recheck.every, c.recheck.waiting = true, nil
		c.table.All(func(e *contable.Conentry) { c.recheck.waiting = append(c.recheck.waiting, e.Ref()) })
	}
	doubted, waiting := c.recheck.next(c.table.Live)
	c.confirmAll(append(doubted, waiting...))
	c.confirmAll(c.recheck.nextMarked(c.rules.IsSilent(), c.table.Live))
	for _, e := range waiting {
		if !e.Gone() {
			c.recheck.waiting = append(c.recheck.waiting, e.Ref())
		}
	}
}
