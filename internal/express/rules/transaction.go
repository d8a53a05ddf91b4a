package rules

import (
	"slices"

	"golang.org/x/sys/unix"
)

// transaction is the changes of nftables that are being taken in: those of one
// transaction of the kernel's, or of several that no packet has gone express between.
type transaction struct {
	reason string // why everything may have changed, "" if only the following has
	bases  []base // before, if noted
	noted  bool
	chains map[place]*chainBefore
	sets   map[place]*set // a copy as it was before, nil for none

	untracked  [2]bool // families of which a rule is gone that may have had conntrack track
	tracked    bool    // a family has got its first such rule
	translated [2]bool // and a chain of type nat
	translate  [2]int  // how many of these chains there were

	gone    map[uint64]*rule            // by their sums
	pending map[*chain]map[uint64]*rule // rules whose predecessor, by its handle, is not known yet
	last    deleted                     // by the previous message
}

// place is the name of a chain or a set.
type place struct {
	table tableKey
	name  string
}

// chainBefore is what a chain was before the transaction.
type chainBefore struct {
	rules   []*rule
	leads   *[2][]*chain
	existed bool
	// Where rules went, since the chain was last empty.
	lostFirst, lostLast bool
}

// deleted is a rule that was deleted, and where it was.
type deleted struct {
	chain  *chain
	handle uint64
	index  int
}

// begin prepares to take changes in.
func (n *nftables) begin() {
	n.tx = &transaction{
		chains: make(map[place]*chainBefore), sets: make(map[place]*set),
		gone: make(map[uint64]*rule), pending: make(map[*chain]map[uint64]*rule),
		translate: n.translate,
	}
}

// doubt means that what is known of the tables is not certain any more: they have
// to be read again.
func (n *nftables) doubt(reason string) {
	if n.doubtful == "" {
		n.doubtful = reason
	}
}

// everything means that every connection may be concerned.
func (n *nftables) everything(reason string) {
	if n.tx != nil && n.tx.reason == "" {
		n.tx.reason = reason
	}
}

// noteBases keeps what the base chains are before the first change of one.
func (n *nftables) noteBases() {
	if tx := n.tx; tx != nil && !tx.noted {
		tx.noted = true
		for _, b := range n.bases {
			tx.bases = append(tx.bases, *b)
		}
	}
}

// noteChain keeps what a chain is before its first change; was is nil if there
// was none of that name.
func (t *table) noteChain(c, was *chain) (before *chainBefore) {
	if t.tx == nil {
		return nil
	}
	at := place{t.key, c.name}
	if before = t.tx.chains[at]; before != nil {
		return before
	}
	before = &chainBefore{existed: was != nil}
	if was != nil {
		before.rules, before.leads = was.all, was.leadsTo()
		was.all = append(make([]*rule, 0, len(was.all)+8), was.all...)
	}
	t.tx.chains[at] = before
	return before
}

// noteSet keeps what a set is before its first change.
func (t *table) noteSet(name string) {
	if t.tx == nil {
		return
	}
	at := place{t.key, name}
	if _, noted := t.tx.sets[at]; noted {
		return
	}
	t.tx.sets[at] = nil
	if s := t.set(name); s != nil {
		before := *s
		s.since = &before
		t.tx.sets[at] = &before
	}
}

// like returns a rule that is gone, and was equal.
func (tx *transaction) like(sum uint64) *rule {
	if tx == nil {
		return nil
	}
	return tx.gone[sum]
}

// remove takes a rule out of its chain, nil if it is not known.
func (t *table) removeRule(c *chain, handle uint64) *rule {
	before := t.noteChain(c, c)
	i := slices.IndexFunc(c.all, func(r *rule) bool { return r.handle == handle })
	if i < 0 {
		t.doubt("a rule that is not known")
		return nil
	}
	r := c.all[i]
	before.lostFirst = before.lostFirst || i == 0
	before.lostLast = before.lostLast || i == len(c.all)-1
	if c.scanned && i < c.end {
		c.end--
	}
	if i == 0 {
		c.all = c.all[1:] // many are deleted in their order
	} else {
		c.all = slices.Delete(c.all, i, i+1)
	}
	if len(c.all) == 0 {
		before.lostFirst, before.lostLast = false, false
	}
	t.tx.gone[r.sum] = r
	t.tx.last = deleted{c, handle, i}
	return r
}

// insertRule puts a new rule where the kernel has it. The message names the
// predecessor, which may be one that is announced later, unless the rule is the
// first or the last one of all that are in the chain then.
func (t *table) insertRule(r *rule, flags uint16, a attrs) {
	c := r.chain
	before, last := t.noteChain(c, c), t.tx.last
	t.tx.last = deleted{}
	previous := a.handle(unix.NFTA_RULE_POSITION)
	at := 0
	switch {
	case last.chain == c && last.handle == r.handle: // replaced
		at = last.index
	case previous != 0:
		i := len(c.all) - 1
		for i >= 0 && c.all[i].handle != previous {
			i--
		}
		if i < 0 {
			if t.tx.pending[c] == nil {
				t.tx.pending[c] = make(map[uint64]*rule)
			}
			t.tx.pending[c][previous] = r
			return
		}
		at = i + 1
	case len(c.all) == 0:
	case flags&unix.NLM_F_CREATE == 0: // replaced, or a kernel that does not tell
		t.doubt("a rule's place is not known")
	case flags&unix.NLM_F_APPEND != 0:
		if before.lostFirst {
			t.doubt("a rule's place is not known") // it may be the first one
		}
		at = len(c.all)
	case before.lostLast:
		t.doubt("a rule's place is not known") // it may be the last one
	}
	for r != nil {
		if c.scanned && (at < c.end || c.end == 0 || !c.all[c.end-1].ends) {
			c.end++
		}
		c.all = slices.Insert(c.all, at, r)
		at++
		next := t.tx.pending[c][r.handle]
		delete(t.tx.pending[c], r.handle)
		r = next
	}
}

// end says what has changed since begin. Afterwards n.doubtful tells whether the
// tables have to be read again.
func (n *nftables) end() *Change {
	tx := n.tx
	for _, waiting := range tx.pending {
		if len(waiting) > 0 {
			n.doubt("a rule's place is not known")
		}
	}
	for _, t := range n.tables {
		if t.fresh && !t.kept {
			t.skipped = t.skipped || len(t.sets) > 0
			for _, s := range t.sets {
				t.elements -= s.elements.len()
			}
			clear(t.sets)
		}
		t.fresh = false
	}
	c := &Change{nftables: n, why: tx.reason, chains: make(map[*chain]*chainChange), sets: make(map[*rule][]setChange), budget: mostFollowed}
	if n.doubtful != "" {
		c.why = n.doubtful
		return c
	}
	c.tracks = tx.tracked
	for f, had := range tx.untracked {
		if had && n.trackers[f] == 0 {
			c.why = "perhaps no rule has conntrack track packets any more"
		}
	}
	for f, had := range tx.translated {
		if had && n.translate[f] == 0 { // nor are packets of connections that were opened before
			c.why = "there is no chain of type nat any more"
		}
		c.translates[f] = tx.translate[f] == 0 && n.translate[f] > 0
	}
	if tx.noted {
		c.addBases(tx.bases)
	}
	for at, before := range tx.sets {
		t := n.tables[at.table]
		c.addSet(t, at.name, before)
		if t != nil && t.sets[at.name] != nil {
			t.sets[at.name].since, t.sets[at.name].touched = nil, nil
		}
	}
	leads := tx.noted
	for at, before := range tx.chains {
		now := n.chainAt(at)
		if now == nil || !before.existed {
			leads = true
		}
		if now == nil {
			continue // no packet gets there but by a rule or a hook that is gone, too
		}
		leads = leads || !slices.EqualFunc(now.leadsTo()[:], before.leads[:], slices.Equal)
		c.addChain(now, before.rules)
	}
	if leads || c.mapped {
		for _, b := range n.bases {
			b.chain.within = nil
		}
	}
	c.addBySets()
	return c
}

// chainAt returns the chain of a name, nil if there is none.
func (n *nftables) chainAt(at place) *chain {
	if t := n.tables[at.table]; t != nil {
		return t.chains[at.name]
	}
	return nil
}

// now returns the base chain of the same name as it is now, nil if there is none.
func (b *base) now() *base {
	if c := b.chain.in.chainAt(place{b.chain.in.key, b.chain.name}); c != nil {
		return c.base
	}
	return nil
}

// lessTracking notes that a rule is gone that may have had conntrack track packets. With the
// last one of a family the kernel tracks and translates no more (nf_ct_netns_put in its
// net/netfilter/nf_conntrack_proto.c), also those of connections that are open.
func (t *table) lessTracking() {
	if t.tx == nil {
		return
	}
	for _, f := range familiesOf(t.key.family) {
		t.tx.untracked[f] = true
	}
}

// before returns a set as it was before the transaction.
func (tx *transaction) before(t *table, name string) *set {
	if s, noted := tx.sets[place{t.key, name}]; noted {
		return s
	}
	return t.set(name)
}
