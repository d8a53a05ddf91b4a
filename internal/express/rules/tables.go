package rules

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// nftables is the tables of nftables, made of the kernel's messages: its answers
// to requests, and its announcements, which have the same form.
type nftables struct {
	opts       Options
	exact      *exactCounters
	tables     map[tableKey]*table
	bases      []*base
	translate  [2]int // how many chains of type nat there are, by family
	trackers   [2]int // rules that have conntrack track, of the tables that are kept or counted, by family
	generation uint32
	hidesEnds  bool // a rule did since they were read: see Options.Ends
	timesOut   bool // there was a timeout policy since
	rules      int  // of the tables that are kept
	elements   int  // of their sets

	// Of Live's.
	follows  bool // rules are stored packed, and compiled when they are needed
	words    words
	doubtful string  // why they have to be read again
	warm     []*rule // compiled only for what is going on
	tx       *transaction
}

// table is a table of nftables.
type table struct {
	*nftables
	key     tableKey
	handle  uint64
	owned   bool // it may go with a process, see OwnerEnded
	dormant bool // its chains are at no hook
	// kept means that a base chain matters, so that rules and sets are stored. In
	// a cluster the other tables, with address translation only, are the large ones.
	kept    bool
	fresh   bool // made in this transaction
	skipped bool // something of it was not stored
	counted bool // it is not kept, and the trackers of its chains are known
	chains  map[string]*chain
	handles map[uint64]*chain
	sets    map[string]*set
	lookers map[string][]*rule // those that look into a set, by its name
}

func newNFTables(opts Options, exact *exactCounters) *nftables {
	return &nftables{opts: opts, exact: exact, tables: make(map[tableKey]*table)}
}

// take takes a message about an object in.
func (n *nftables) take(m nlmsg.Message) {
	if len(m.Data) < nlmsg.SizeofNfgenmsg || familyNames[m.Data[0]] == "" { // no family of IP packets
		return
	}
	a := parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:])
	const tableName = 1 // the same for all objects
	key := tableKey{m.Data[0], a.text(tableName)}
	msg := m.Type & 0xff
	if msg == unix.NFT_MSG_NEWTABLE {
		n.newTable(key, a)
		return
	}
	t := n.tables[key]
	if t == nil {
		n.doubt("a table that is not known")
		return
	}
	switch msg {
	case unix.NFT_MSG_DELTABLE:
		t.remove()
	case unix.NFT_MSG_NEWCHAIN:
		t.newChain(a)
	case unix.NFT_MSG_DELCHAIN:
		t.deleteChain(a)
	case unix.NFT_MSG_NEWRULE:
		t.newRule(m.Flags, a)
	case unix.NFT_MSG_DELRULE:
		t.deleteRule(a)
	case unix.NFT_MSG_NEWSET:
		t.newSet(a)
	case unix.NFT_MSG_DELSET:
		t.deleteSet(a)
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		t.changeElements(a, msg == unix.NFT_MSG_DELSETELEM)
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ:
		t.changeObject(a)
	default: // flowtables, and what is not known
		n.everything(key.String() + " changed")
	}
}

func (n *nftables) newTable(key tableKey, a attrs) {
	const isDormant, isOwned = 1, 2 // NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER
	flags, handle := a.number(unix.NFTA_TABLE_FLAGS), tableHandle(a)
	dormant := flags&isDormant != 0
	t := n.tables[key]
	switch {
	case t == nil:
		t = &table{
			nftables: n, key: key, handle: handle, dormant: dormant, fresh: n.tx != nil, counted: n.tx != nil,
			chains: make(map[string]*chain), handles: make(map[uint64]*chain), sets: make(map[string]*set), lookers: make(map[string][]*rule),
		}
		n.tables[key] = t
	case t.handle != handle:
		n.doubt(key.String() + " has gone with its owner, and there is another one")
	case t.dormant != dormant:
		n.doubt(key.String() + " goes dormant, or wakes up")
	}
	t.owned = flags&isOwned != 0
}

func tableHandle(a attrs) uint64 {
	const handle = 4 // NFTA_TABLE_HANDLE
	return a.handle(handle)
}

func (t *table) remove() {
	for _, c := range t.chains {
		t.removeChain(c)
	}
	for _, s := range t.sets {
		t.removeSet(s)
	}
	delete(t.tables, t.key)
}

// newChain takes a new chain, or a new policy of one.
func (t *table) newChain(a attrs) {
	const chainFlags, binding, chainUserdata = 10, 1 << 2, 12 // NFTA_CHAIN_FLAGS, NFT_CHAIN_BINDING, NFTA_CHAIN_USERDATA
	name, handle := a.text(unix.NFTA_CHAIN_NAME), a.handle(unix.NFTA_CHAIN_HANDLE)
	c := t.chains[name]
	if other := t.handles[handle]; other != c {
		t.doubt("a chain has another name or handle")
		return
	}
	if c == nil {
		c = &chain{table: t.key.String(), name: name, comment: udataComment(a.get(chainUserdata)), contents: &contents{in: t, handle: handle}}
		c.bound = a.number(chainFlags)&binding != 0
		t.noteChain(c, nil)
		t.chains[name], t.handles[handle] = c, c
		if c.nat = !t.dormant && len(a.nested(unix.NFTA_CHAIN_HOOK)) > 0 && a.text(unix.NFTA_CHAIN_TYPE) == "nat"; c.nat {
			for _, f := range familiesOf(t.key.family) {
				t.translate[f]++
			}
		}
	}
	b := t.baseOf(c, a)
	switch {
	case b == nil && c.base == nil:
	case b == nil || c.base == nil && len(c.all) > 0:
		t.doubt("a chain is moved to a hook, or from one")
	case c.base == nil:
		t.addBase(b)
	case b.hasDevices():
		t.doubt("devices of " + c.String() + " changed") // the message has some of them
	default:
		t.noteBases()
		*c.base = *b
	}
}

// addBase adds a base chain that matters.
func (t *table) addBase(b *base) {
	t.noteBases()
	b.chain.base = b
	t.bases = append(t.bases, b)
	if !t.kept && t.skipped {
		t.doubt(t.key.String() + " was not stored")
	}
	t.kept = true
}

// baseOf returns what a message says of a base chain, nil if it is none that
// matters.
func (t *table) baseOf(c *chain, a attrs) *base {
	const nfDrop = 0
	at := a.nested(unix.NFTA_CHAIN_HOOK)
	if len(at) == 0 || t.dormant {
		return nil
	}
	b := &base{
		chain: c, hook: hookOf(t.key.family, at.number(unix.NFTA_HOOK_HOOKNUM)), families: familiesOf(t.key.family),
		priority: int32(at.number(unix.NFTA_HOOK_PRIORITY)),
		devices:  hookDevices(at),
		nat:      a.text(unix.NFTA_CHAIN_TYPE) == "nat",
		drops:    a.has(unix.NFTA_CHAIN_POLICY) && a.number(unix.NFTA_CHAIN_POLICY) == nfDrop,
	}
	if b.hook == "" || !t.opts.Drops && b.starting() && !b.outer() {
		return nil
	}
	return b
}

// deleteChain takes the end of a chain. Of one at devices it may mean that it
// left some of them.
func (t *table) deleteChain(a attrs) {
	switch c := t.chains[a.text(unix.NFTA_CHAIN_NAME)]; {
	case c == nil:
		t.doubt("a chain that is not known")
	case c.base != nil && c.base.hasDevices():
		t.doubt("devices of " + c.String() + " changed")
	default:
		t.removeChain(c)
	}
}

func (t *table) removeChain(c *chain) {
	t.noteChain(c, c)
	t.rules -= len(c.all)
	for _, r := range c.all {
		c.count(r, -1)
		t.unbind(r)
	}
	c.track(-c.trackers)
	delete(t.chains, c.name)
	delete(t.handles, c.handle)
	if c.nat {
		for _, f := range familiesOf(t.key.family) {
			t.translate[f]--
			if t.tx != nil {
				t.tx.translated[f] = true
			}
		}
	}
	if c.base != nil {
		t.noteBases()
		t.removeBase(c.base)
	}
}

func (n *nftables) removeBase(b *base) {
	for i, x := range n.bases {
		if x == b {
			n.bases = append(n.bases[:i:i], n.bases[i+1:]...)
			return
		}
	}
}

// changeObject takes a change of a named object. Those with a state of their own
// judge packets, whatever they are set to. A rule of a table that is not kept may use one.
func (t *table) changeObject(a attrs) {
	const objType = 3                                                 // NFTA_OBJ_TYPE
	const counter, quota, limit, connlimit, ctTimeout = 1, 2, 4, 5, 7 // NFT_OBJECT_*
	switch typ := a.number(objType); typ {
	case counter, quota, limit, connlimit:
	default:
		t.timesOut = t.timesOut || typ == ctTimeout
		t.everything("an object of " + t.key.String() + " changed")
	}
}

// contents is what Live knows of a chain.
type contents struct {
	in        *table
	handle    uint64
	base      *base // if it is one that matters
	nat       bool  // it is a base chain of type nat
	bound     bool  // it is a rule's own
	all       []*rule
	trackers  int    // rules that have conntrack track, if its table is not kept but counted
	judging   int    // of the rules: may judge single packets, or keep them from conntrack
	marking   [2]int // of the rules: by the bits of markUse
	activated bool   // rules is up to date

	// end is the number of rules up to the first that ends the traversal of all
	// established packets that conntrack sees, if scanned.
	end     int
	scanned bool
	leads   *[2][]*chain        // where rules may send packets; those of established connections; nil if not known
	within  *[2]map[*chain]bool // of a base chain: all chains that its packets may get to
}

func (c *chain) String() string { return c.table + " " + c.name }

func (b *base) hasDevices() bool { return b.hook == ingress || b.hook == egress }

// same reports whether two base chains are at the same place, and end alike.
func (b *base) same(o *base) bool { return b.sameButEnd(o) && b.drops == o.drops }

// sameButEnd reports whether they are at the same place.
func (b *base) sameButEnd(o *base) bool {
	return b.chain.String() == o.chain.String() && b.hook == o.hook && b.priority == o.priority && b.nat == o.nat &&
		slices.Equal(b.devices, o.devices)
}

// newRule takes a rule.
func (t *table) newRule(flags uint16, a attrs) {
	list := expressionList(a.get(unix.NFTA_RULE_EXPRESSIONS))
	t.hidesEnds = t.hidesEnds || t.follows && hideEnds(list)
	if !t.kept {
		t.skipped = true
		t.countSkipped(a, 1)
		return
	}
	c := t.chains[a.text(unix.NFTA_RULE_CHAIN)]
	if c == nil {
		t.doubt("a chain that is not known")
		return
	}
	t.rules++
	if t.opts.Drops && t.rules > mostDropRules {
		return
	}
	r := &rule{chain: c, handle: a.handle(unix.NFTA_RULE_HANDLE)}
	comment := udataComment(a.get(unix.NFTA_RULE_USERDATA))
	if !t.follows {
		t.compile(r, list, comment)
		c.all = append(c.all, r)
		return
	}
	t.follow(r, list, comment)
	if t.tx == nil {
		c.all = append(c.all, r)
	} else {
		t.insertRule(r, flags, a)
	}
	c.count(r, 1)
}

func (t *table) deleteRule(a attrs) {
	if !t.kept {
		t.countSkipped(a, -1)
		return
	}
	c := t.chains[a.text(unix.NFTA_RULE_CHAIN)]
	if c == nil {
		t.doubt("a chain that is not known")
		return
	}
	if r := t.removeRule(c, a.handle(unix.NFTA_RULE_HANDLE)); r != nil {
		c.count(r, -1)
		t.rules--
		t.unbind(r)
	}
}

// unbind removes the chain that is a rule's own and goes with it, without an announcement.
func (t *table) unbind(r *rule) {
	if r.names == nil || r.target == "" {
		return
	}
	if c := t.chains[r.target]; c != nil && c.bound {
		t.removeChain(c)
	}
}

// count counts a rule that was added to a chain, or is removed. One that leads nowhere
// and ends nothing only moves the end, which insertRule and removeRule do: a chain may be
// long.
func (c *chain) count(r *rule, by int) {
	if r.tracks {
		c.in.track(by)
	}
	c.activated = false
	if r.names != noNames || r.ends {
		c.changedWay()
	}
	if r.names == nil {
		return
	}
	if r.matters() {
		c.judging += by
	}
	for i := range c.marking {
		c.marking[i] += by * int(r.uses>>i&1)
	}
	for _, name := range r.sets {
		c.in.countLooker(name, r, by)
	}
}

// countLooker notes that a rule looks into a set, or is gone.
func (t *table) countLooker(name string, r *rule, by int) {
	all := t.lookers[name]
	switch {
	case by > 0:
		t.lookers[name] = append(all, r)
	case len(all) > 1:
		last := len(all) - 1
		all[slices.Index(all, r)], all[last] = all[last], nil
		t.lookers[name] = all[:last]
	default:
		delete(t.lookers, name)
	}
}

// changedWay notes that the rules of a chain may end elsewhere, or lead elsewhere.
func (c *chain) changedWay() { c.scanned, c.leads = false, nil }

// countSkipped counts a rule of a table that is not kept. Both its announcements have its
// expressions (nf_tables_fill_rule_info in the kernel's net/netfilter/nf_tables_api.c).
func (t *table) countSkipped(a attrs, by int) {
	if by > 0 && !t.counted || !haveTracked(expressionList(a.get(unix.NFTA_RULE_EXPRESSIONS))) {
		return
	}
	switch c := t.chains[a.text(unix.NFTA_RULE_CHAIN)]; {
	case !t.counted:
		t.lessTracking()
	case c == nil:
		t.doubt("a chain that is not known")
	default:
		c.track(by)
	}
}

// track adds to the trackers of a chain whose table is not kept.
func (c *chain) track(by int) {
	c.trackers += by
	c.in.track(by)
}

// track adds to the rules that have conntrack track.
func (t *table) track(by int) {
	if by == 0 {
		return
	}
	for _, f := range familiesOf(t.key.family) {
		if t.tx != nil && t.trackers[f] == 0 {
			t.tx.tracked = true
		}
		t.trackers[f] += by
	}
	if by < 0 {
		t.lessTracking()
	}
}

// scan finds out where the traversal of a chain ends.
func (c *chain) scan() {
	if c.scanned {
		return
	}
	c.scanned, c.end = true, len(c.all)
	if i := slices.IndexFunc(c.all, func(r *rule) bool { return r.ends }); i >= 0 {
		c.end = i + 1
	}
}

// leadsTo returns where the rules of a chain may send packets, and those of established
// connections.
func (c *chain) leadsTo() *[2][]*chain {
	if c.leads != nil {
		return c.leads
	}
	c.scan()
	var leads [2]chainSet
	for i, r := range c.all {
		if r.names == noNames {
			continue
		}
		for _, target := range r.targets() {
			leads[0].add(target)
			if i < c.end && !r.never {
				leads[1].add(target)
			}
		}
	}
	c.leads = &[2][]*chain{leads[0].all, leads[1].all}
	return c.leads
}

// chainSet lists chains, each once. The zero value is empty.
type chainSet struct {
	all []*chain
	has map[*chain]bool
}

func (s *chainSet) add(c *chain) {
	if s.has == nil {
		s.has = make(map[*chain]bool)
	}
	if !s.has[c] {
		s.has[c] = true
		s.all = append(s.all, c)
	}
}

// reached returns the chains that packets of a base chain may get to: all
// packets, or those of established connections that conntrack sees.
func (b *base) reached(established bool) map[*chain]bool {
	kind := 0
	if established && b.tracks() {
		kind = 1
	}
	if b.chain.within == nil {
		b.chain.within = new([2]map[*chain]bool)
	}
	if b.chain.within[kind] == nil {
		found := make(map[*chain]bool)
		b.chain.addReached(kind, found)
		b.chain.within[kind] = found
	}
	return b.chain.within[kind]
}

func (c *chain) addReached(kind int, found map[*chain]bool) {
	if found[c] || c.contents == nil {
		return
	}
	found[c] = true
	for _, target := range c.leadsTo()[kind] {
		target.addReached(kind, found)
	}
}

// tracks reports whether conntrack has seen the packets that come to a base
// chain, unless something else has been told of them.
func (b *base) tracks() bool { return b.form(&Conn{}).tracked }
