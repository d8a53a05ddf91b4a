package rules

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
)

// Changes of iptables-legacy: the kernel has whole tables only, so the rules of a table
// are compared with those that were read before.

// mostLegacy bounds the rules of iptables-legacy that a Change looks at.
const mostLegacy = 1 << 10

// legacySpot is a rule of iptables-legacy that was added, or is gone, and the base
// chains by which packets may get to its chain.
type legacySpot struct {
	*rule
	bases []*base
}

// followLegacy reads iptables-legacy, and adds to a change what has changed there.
func (l *Live) followLegacy(c *Change) error {
	tables, err := readLegacyTables(l.opts)
	if err != nil {
		return fmt.Errorf("read iptables-legacy: %w", err)
	}
	is := digest(tables)
	if is == l.legacy {
		return nil
	}
	bases, err := parseOthers(tables, l.opts, l.exact)
	if err != nil {
		return err
	}
	if err := c.addLegacy(l.tables, tables, l.exact); err != nil {
		return err
	}
	l.others, l.tables, l.legacy = newRuleset(bases, l.opts), tables, is
	return nil
}

// addLegacy adds the rules by which tables differ from what they were. A table that is
// new, or gone, has no rules on the other side.
func (c *Change) addLegacy(before, now []legacyTable, exact *exactCounters) error {
	was, err := outlines(before, exact)
	if err != nil {
		return err
	}
	is, err := outlines(now, exact)
	if err != nil {
		return err
	}
	for name := range is {
		if was[name] == nil {
			was[name] = new(outline)
		}
	}
	for name, old := range was {
		o := is[name]
		if o == nil {
			o = new(outline)
		}
		if err := c.addOutline(old, o); err != nil {
			return err
		}
	}
	return nil
}

// outline is a table of iptables-legacy, with rules that are not compiled.
type outline struct {
	parser  legacyParser
	bases   []*base
	chains  map[string][]*rule
	entries map[*rule]legacyEntry
	next    map[*rule]uint32
	leads   map[*chain]*chainSet
}

func outlines(tables []legacyTable, exact *exactCounters) (map[string]*outline, error) {
	all := make(map[string]*outline)
	for _, t := range tables {
		o, err := t.outline(exact)
		if err != nil {
			return nil, fmt.Errorf("read iptables-legacy: table %s: %w", t.name, err)
		}
		all[o.parser.table] = o
	}
	return all, nil
}

func (t legacyTable) outline(exact *exactCounters) (o *outline, err error) {
	o = &outline{
		chains: make(map[string][]*rule), entries: make(map[*rule]legacyEntry),
		next: make(map[*rule]uint32), leads: make(map[*chain]*chainSet),
	}
	if o.parser, o.bases, err = t.begin(exact); err != nil {
		return nil, err
	}
	err = o.parser.each(func(c *chain, e legacyEntry, next uint32) error {
		r := &rule{chain: c, handle: uint64(len(o.chains[c.name]) + 1)}
		target := o.parser.target(e, next)
		r.sum = o.parser.sum(e, next)
		o.chains[c.name] = append(o.chains[c.name], r)
		o.entries[r], o.next[r] = e, next
		if target != nil {
			if o.leads[c] == nil {
				o.leads[c] = new(chainSet)
			}
			o.leads[c].add(target)
		}
		return nil
	})
	for _, b := range o.bases { // without a table, packets pass as well
		rules := o.chains[b.chain.name]
		if n := len(rules); n > 0 && o.parser.passesAll(o.entries[rules[n-1]]) {
			o.chains[b.chain.name] = rules[:n-1]
		}
	}
	return o, err
}

// target is the chain that a rule sends packets to, nil for none.
func (p *legacyParser) target(e legacyEntry, next uint32) *chain {
	if e.target.name != "" || len(e.target.info) < 4 {
		return nil
	}
	if to := native32(e.target.info, 0); int32(to) >= 0 && to != next {
		return p.chains[to]
	}
	return nil
}

// match is what a rule compares of a packet's headers and devices.
func (l *legacyForm) match(e legacyEntry) []byte { return e.ip[:l.target-4] }

// passesAll reports whether a rule accepts every packet, as policies do.
func (p *legacyParser) passesAll(e legacyEntry) bool {
	const accept = -2
	return len(e.matches) == 0 && e.target.name == "" && len(e.target.info) >= 4 && int32(native32(e.target.info, 0)) == accept &&
		!slices.ContainsFunc(p.match(e), func(b byte) bool { return b != 0 })
}

// sum is a digest of a rule without its counters. The chain that it leads to counts by
// its name, as the offset is another one when rules before it come or go.
func (p *legacyParser) sum(e legacyEntry, next uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	part := func(b []byte) {
		h.Write(binary.NativeEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	part(p.match(e))
	for _, m := range append(slices.Clone(e.matches), e.target) {
		part([]byte(m.name))
		h.WriteByte(byte(m.revision))
		switch target := p.target(e, next); {
		case target != nil:
			part([]byte(target.name))
		case m.name == "" && len(m.info) >= 4 && native32(m.info, 0) == next: // without a target
		default:
			part(m.info)
		}
	}
	return h.Sum64()
}

// addOutline adds the rules by which a table differs from what it was.
func (c *Change) addOutline(was, is *outline) error {
	names := slices.Concat(slices.Collect(maps.Keys(was.chains)), slices.Collect(maps.Keys(is.chains)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		for _, r := range compareRules(was.chains[name], is.chains[name]).middle {
			o := is
			if r.gone {
				o = was
			}
			if !r.changed {
				continue
			}
			if len(c.legacy) == mostLegacy {
				c.why = "many rules of iptables-legacy changed"
				return nil
			}
			if err := c.addLegacyRule(o, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Change) addLegacyRule(o *outline, r *rule) error {
	compiled, err := o.parser.rule(r.chain, o.entries[r], o.next[r])
	if err != nil {
		return fmt.Errorf("read iptables-legacy: %s: %w", r.chain.table, err)
	}
	compiled.gone = r.gone
	spot := legacySpot{rule: compiled}
	for _, b := range o.bases {
		if o.leadsTo(b.chain, r.chain, make(map[*chain]bool)) {
			spot.bases = append(spot.bases, b)
		}
	}
	if len(spot.bases) > 0 {
		c.legacy = append(c.legacy, spot)
	}
	return nil
}

// leadsTo reports whether packets may get from a chain to another one.
func (o *outline) leadsTo(from, to *chain, seen map[*chain]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return o.leads[from] != nil && slices.ContainsFunc(o.leads[from].all, func(c *chain) bool { return o.leadsTo(c, to, seen) })
}

// legacyMayMatch reports whether packets of a connection may match a rule of
// iptables-legacy that has changed, wherever they get to.
func (c *Change) legacyMayMatch(conn *Conn, unreplied bool) (may bool) {
	m := machine{hit: goOn, change: c}
	for _, s := range c.legacy {
		for _, b := range s.bases {
			if may || b.starting() {
				continue
			}
			b.forms(conn, unreplied, func(f *form) {
				m.form = f
				may = may || m.differs(s.rule)
			})
		}
	}
	return may
}

// legacyMayMatchTunnel is that of the outer packets of a tunnel.
func (c *Change) legacyMayMatchTunnel(conn *Conn) bool {
	m := machine{hit: goOn, change: c}
	for _, s := range c.legacy {
		for _, b := range s.bases {
			if !b.outer() {
				continue
			}
			f := b.outerForm(conn)
			if m.form = &f; m.differs(s.rule) {
				return true
			}
		}
	}
	return false
}
