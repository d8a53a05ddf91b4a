package rules

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Change is what a transaction of the rules has changed. It is valid until the next
// one is taken in.
//
// A connection is not concerned if its packets meet the same rules as before, with
// the same result. So what has changed counts where packets reach it and where it
// matches, or may do so, before or after.
type Change struct {
	*nftables
	why    string // every connection may be concerned; "" if only what follows has changed
	fresh  bool   // the rules were read afresh
	spots  []spot
	left   []left  // base chains that are gone
	ends   []*base // that drop at their end, and did not before, or the other way round
	legacy []legacySpot
	chains map[*chain]*chainChange
	sets   map[*rule][]setChange
	mapped bool    // a verdict map changed
	bySet  []*rule // the keys of sets
	// translates are the families that have got their first chain of type nat. Those chains
	// see one more packet of connections that began before, while these are NEW.
	translates [2]bool
	tracks     bool // conntrack may see packets that it did not see before
	budget     int  // of rules that packets are followed through
}

// spot is a rule that was added, that is gone, or that looks into a set which has
// changed.
type spot struct {
	*rule
	in *chain // as it is now
	// first means that no packet of an established connection that conntrack sees
	// matches the rule, or gets there in its chain.
	first bool
}

// left is a base chain that is gone, and what its rules were.
type left struct {
	*base
	rules []*rule
}

// chainChange is what has changed in a chain.
type chainChange struct {
	// head and tail are rules as before. What is between them has changed, but for
	// rules that are not marked: those that are gone are at their places.
	head, middle, tail []*rule
	merged             []*rule // all of them, if it was asked for
}

// setChange is a set that a rule looks into, what it was before, and with only the elements
// by which these differ, nil if that is not known.
type setChange struct{ now, before, delta *set }

// mostFollowed bounds how many rules connections are followed through for one
// Change. A connection that is not followed to the end is taken for concerned.
const mostFollowed = 1 << 12

// Everything returns why every connection may be concerned, "" if Concerns has to be
// asked.
func (c *Change) Everything() string { return c.why }

// Fresh reports whether the rules were read afresh.
func (c *Change) Fresh() bool { return c.fresh }

// Nothing reports whether no connection is concerned.
func (c *Change) Nothing() bool {
	return c.why == "" && len(c.spots) == 0 && len(c.left) == 0 && len(c.ends) == 0 && len(c.legacy) == 0 && c.translates == [2]bool{}
}

// MayTrack reports whether conntrack may see packets that it did not see before.
func (c *Change) MayTrack() bool { return c.why != "" || c.tracks }

// addSet adds the rules that look into a set which has changed. An anonymous one never
// changes: it comes and goes with its rule, which counts by what the set contains, and its
// name may be that of another one afterwards.
func (c *Change) addSet(t *table, name string, before *set) {
	if t == nil || before == nil {
		return // then rules that look into it have changed as well
	}
	now := t.set(name)
	if now == nil || now.flags&before.flags&unix.NFT_SET_ANONYMOUS != 0 {
		return
	}
	before.settle()
	delta, known := now.delta(before)
	if known && delta.elements.len() == 0 {
		return
	}
	for _, r := range t.lookers[name] {
		r.changed = true
		c.sets[r] = append(c.sets[r], setChange{now, before, delta})
		c.mapped = true
		t.recount(r, now, before, delta)
		c.bySet = append(c.bySet, r)
	}
}

// recount classifies a rule again that looks into a set which has changed, see reclassify.
func (t *table) recount(r *rule, now, before, delta *set) {
	was := r.matters()
	t.reclassify(r, now, before, delta)
	switch is := r.matters(); {
	case is && !was:
		r.chain.judging++
	case was && !is:
		r.chain.judging--
	}
	r.chain.changedWay()
	r.chain.activated = false
}

// addBases adds base chains that have come, are gone, or end in another way. One that
// comes with its chain has rules which have changed, all of them.
func (c *Change) addBases(before []base) {
	for i := range before {
		was := &before[i]
		if slices.ContainsFunc(c.bases, was.same) {
			continue
		}
		at := place{was.chain.in.key, was.chain.name}
		now := was.now()
		switch {
		case now == nil && c.chainAt(at) != nil:
			c.why = was.chain.String() + " left its hook"
		case now == nil:
			if was.drops {
				c.ends = append(c.ends, was)
			}
			rules := c.tx.chains[at].rules
			for _, r := range rules {
				r.leave()
			}
			c.left = append(c.left, left{was, rules})
			c.warm = append(c.warm, rules...)
		case was.sameButEnd(now):
			c.ends = append(c.ends, now)
		default:
			c.why = was.chain.String() + " moved to another hook"
		}
	}
	for _, b := range c.bases {
		if slices.ContainsFunc(before, func(was base) bool { return was.chain.String() == b.chain.String() }) {
			continue
		}
		if noted := c.tx.chains[place{b.chain.in.key, b.chain.name}]; noted == nil || noted.existed {
			c.why = b.chain.String() + " was moved to a hook"
		}
		if b.drops {
			c.ends = append(c.ends, b)
		}
	}
}

// come means that a rule is new at its place: it counts where it matches, also if a set
// that it looks into has changed as well.
func (r *rule) come() { r.changed, r.added = true, true }

// leave means that a rule is gone: it finds in sets what was there before.
func (r *rule) leave() {
	r.changed, r.gone, r.code = true, true, nil
}

// addChain adds the rules by which a chain differs from what it was.
func (c *Change) addChain(now *chain, before []*rule) {
	x := compareRules(before, now.all)
	c.chains[now] = x
	ended := now.ended() && now.end <= len(x.head)
	for _, r := range x.middle {
		if r.changed {
			c.add(r, now, ended || r.never)
		} else {
			ended = ended || r.ends
		}
	}
}

// add adds a rule that has changed.
func (c *Change) add(r *rule, in *chain, first bool) {
	c.spots = append(c.spots, spot{r, in, first})
	c.warm = append(c.warm, r)
}

// addBySets adds the rules that look into sets which have changed.
func (c *Change) addBySets() {
	for _, r := range c.bySet {
		c.add(r, r.chain, r.chain.ended() && r.chain.end <= slices.Index(r.chain.all, r))
	}
}

// ended reports whether the last rule before c.end, which is as it was before, ends
// the traversal of all established packets that conntrack sees.
func (c *chain) ended() bool {
	c.scan()
	return c.end > 0 && c.all[c.end-1].ends && !c.all[c.end-1].changed
}

// compareRules compares the rules of a chain before and now, and marks those that
// have changed.
func compareRules(before, now []*rule) *chainChange {
	same := func(a, b *rule) bool { return a == b || a.sum == b.sum }
	var x chainChange
	n := 0
	for n < min(len(before), len(now)) && same(before[n], now[n]) {
		n++
	}
	x.head, before, now = now[:n], before[n:], now[n:]
	n = 0
	for n < min(len(before), len(now)) && same(before[len(before)-1-n], now[len(now)-1-n]) {
		n++
	}
	x.tail, before, now = now[len(now)-n:], before[:len(before)-n], now[:len(now)-n]
	left, right := countRules(before), countRules(now)
	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(before) > 0 && right[before[0].sum] == 0:
			left[before[0].sum]--
			before[0].leave()
			x.middle, before = append(x.middle, before[0]), before[1:]
		case len(now) > 0 && left[now[0].sum] == 0:
			right[now[0].sum]--
			now[0].come()
			x.middle, now = append(x.middle, now[0]), now[1:]
		case before[0].sum == now[0].sum:
			left[now[0].sum]--
			right[now[0].sum]--
			x.middle = append(x.middle, now[0])
			before, now = before[1:], now[1:]
		default: // another order: all the rest has changed
			for _, r := range before {
				r.leave()
			}
			for _, r := range now {
				r.come()
			}
			x.middle, before, now = slices.Concat(x.middle, before, now), nil, nil
		}
	}
	return &x
}

func countRules(all []*rule) map[uint64]int {
	n := make(map[uint64]int, len(all))
	for _, r := range all {
		n[r.sum]++
	}
	return n
}

// has reports whether a rule has changed.
func (c *Change) has(r *rule) bool { return c != nil && r.changed }

// rulesOf returns the rules of a chain.
func (c *Change) rulesOf(in *chain) []*rule {
	if in.contents == nil {
		return in.rules
	}
	x := c.chains[in]
	if x == nil {
		return in.all
	}
	if x.merged == nil {
		x.merged = slices.Concat(x.head, x.middle, x.tail)
	}
	return x.merged
}

// Concerns reports whether what packets of a connection meet may have changed.
func (c *Change) Concerns(conn Conn) bool {
	return c.why != "" || c.MayConcern(conn) && (isUnreplied(&conn) && c.translatesNow(&conn) || c.reaches(conn))
}

// MayConcern reports whether a rule that has changed may match packets of a
// connection, wherever they get to. What is not known of the connection may be
// anything: it may stand for many, which have been answered.
func (c *Change) MayConcern(conn Conn) (may bool) {
	unreplied := isUnreplied(&conn)
	m := machine{hit: goOn, change: c}
	for _, s := range c.spots {
		for _, b := range c.bases {
			established := b.tracks() && !unreplied && !conn.Untracked
			if may || b.starting() || established && s.first || !b.reached(established)[s.in] {
				continue
			}
			b.forms(&conn, unreplied, func(f *form) {
				m.form = f
				may = may || m.differs(s.rule)
			})
		}
	}
	return may || c.why != "" || unreplied && c.translatesNow(&conn) || c.passesOther(&conn, unreplied)
}

// translatesNow reports whether a family of a connection has got its first chain of type nat.
func (c *Change) translatesNow(conn *Conn) bool {
	return slices.ContainsFunc(conn.families(), func(f family) bool { return c.translates[f] })
}

// passesOther reports whether packets of a connection may reach the end of a base chain
// that drops there now, or did before, or match a rule of one that is gone, or of
// iptables-legacy.
func (c *Change) passesOther(conn *Conn, unreplied bool) (passes bool) {
	for _, b := range c.ends {
		if !b.starting() {
			b.forms(conn, unreplied, func(*form) { passes = true })
		}
	}
	for _, l := range c.left {
		if !l.starting() && !passes {
			l.forms(conn, unreplied, func(f *form) { passes = passes || c.matched(l, f) })
		}
	}
	return passes || c.legacyMayMatch(conn, unreplied)
}

// matched reports whether packets of a form may have matched a rule of a base chain that
// is gone.
func (c *Change) matched(l left, f *form) bool {
	m := machine{form: f, hit: goOn, change: c}
	for _, r := range l.rules {
		if f.tracked && !f.unreplied && r.never {
			continue
		}
		if c.budget--; c.budget < 0 || m.differs(r) {
			return true
		}
	}
	return false
}

func goOn(*rule, string) bool { return true }

// isUnreplied reports whether packets of a connection may be those of one without
// any reply.
func isUnreplied(c *Conn) bool { return c.Status != 0 && c.Status&statusSeenReply == 0 }

// reaches reports whether packets of a connection reach a rule that has changed and
// may matter to them.
func (c *Change) reaches(conn Conn) bool {
	unreplied := isUnreplied(&conn)
	m := machine{hit: goOn, change: c}
	for _, b := range c.bases {
		if b.starting() {
			continue
		}
		b.forms(&conn, unreplied, func(f *form) {
			if m.stopped {
				return
			}
			m.form, m.budget = f, min(maxRules, c.budget)
			m.run(b.chain, 0)
			c.budget -= min(maxRules, c.budget) - max(m.budget, 0)
		})
	}
	return m.stopped || c.passesOther(&conn, unreplied)
}

// differs reports whether a rule that has changed may matter to packets that reach it.
func (m *machine) differs(r *rule) bool {
	sets := m.change.sets[r]
	if len(sets) == 0 || r.gone || r.added {
		m.affected = false
		return m.apply(r) != no || m.affected
	}
	type result struct {
		matched   truth
		verdicts  []verdict
		registers [64]octet
		affected  bool
	}
	if c := sets[0]; len(sets) == 1 && c.delta != nil {
		c.now.probe = &probe{delta: c.delta}
		m.apply(r)
		met := c.now.probe.met
		c.now.probe = nil
		return met
	}
	ask := func() (x result) {
		m.affected, m.registers = false, [64]octet{}
		x.matched = m.apply(r)
		x.verdicts, x.registers, x.affected = m.verdicts, m.registers, m.affected
		return x
	}
	now := ask()
	for _, s := range sets {
		*s.now, *s.before = *s.before, *s.now
	}
	was := ask()
	for _, s := range sets {
		*s.now, *s.before = *s.before, *s.now
	}
	if now.matched != was.matched {
		return true
	}
	switch now.matched {
	case no:
		return now.affected || was.affected
	case yes:
		return !sameVerdicts(now.verdicts, was.verdicts) || now.registers != was.registers
	default:
		return true
	}
}

// ConcernsTunnel is Concerns for the outer packets of a tunnel, see TouchesTunnel.
func (c *Change) ConcernsTunnel(t Tunnel) bool {
	if c.why != "" {
		return true
	}
	conn := t.conn()
	m := machine{hit: goOn, change: c}
	for _, s := range c.spots {
		for _, b := range c.bases {
			if !b.outer() || !b.reached(false)[s.in] {
				continue
			}
			f := b.outerForm(&conn)
			m.form = &f
			if m.differs(s.rule) {
				return true
			}
		}
	}
	for _, l := range c.left {
		if l.outer() {
			f := l.outerForm(&conn)
			if c.matched(l, &f) {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.ends, (*base).outer) || c.legacyMayMatchTunnel(&conn)
}

// outerForm is the form of the outer packets of a tunnel, in one direction.
func (b *base) outerForm(c *Conn) form {
	f := b.form(c)
	f.family, f.unreplied, f.outward = ipv4, true, true
	f.bare = b.bare(f.outward, unknownDevice)
	f.fill(translated)
	return f
}
