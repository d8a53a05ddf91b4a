package rules

import (
	"slices"
	"strings"
)

// step is one thing that a rule does to a packet, in order. Most steps check a
// condition.
type step struct {
	// check returns whether packets pass the step. It is nil if the step
	// itself judges single packets, or needs every packet.
	check func(*machine) truth
	text  string
	why   string // what judges single packets; "" is text
	// expects means that conntrack may expect other connections because of it.
	expects bool
	// hidesEnd means that conntrack does not announce the end of the connection.
	hidesEnd bool
	// untracks means that it keeps packets from conntrack.
	untracks bool
	// pure means that the step only checks, or loads a register: packets that a
	// later step excludes are as if the rule were not there.
	pure bool
	// silent reports whether what it depends on may change without an announcement;
	// nil if it never does.
	silent func() bool
	// byMark means that this is a connection's mark, which conntrack can be asked for.
	byMark bool
	marks  markUse // what it has to do with marks
}

// kind is how a rule ends for a packet.
type kind uint8

const (
	proceed kind = iota // with the next rule
	accepts             // by the base chain
	drops
	rejects // drops, with an answer
	jump
	goTo
	back // to the calling chain
)

// verdict is the end of a rule.
type verdict struct {
	kind   kind
	target *chain // of jump and goTo
}

// rule is a rule.
type rule struct {
	chain    *chain
	handle   uint64
	*code    // nil while a rule that Live follows is not needed: ready compiles it
	followed // of a rule that Live follows
}

// code is a rule, compiled so that packets can be followed.
type code struct {
	steps    []step
	verdicts []verdict // one: if no step has produced another
	maps     []*set    // verdict maps that steps produce verdicts from
	ending   string    // text of the verdict
}

// chain is a chain of rules.
type chain struct {
	table     string
	name      string
	comment   string
	rules     []*rule // of Live, those that Touches has to follow
	*contents         // of a chain that Live follows
}

func (r *rule) describe(why string) Rule {
	words := make([]string, 0, len(r.steps)+1)
	for _, s := range r.steps {
		if s.text != "" {
			words = append(words, s.text)
		}
	}
	if r.ending != "" {
		words = append(words, r.ending)
	}
	return Rule{Table: r.chain.table, Chain: r.chain.name, Handle: r.handle, Text: strings.Join(words, " "), Why: why}
}

// untracks reports whether a rule keeps the packets that match it from conntrack.
func (r *rule) untracks() bool {
	return slices.ContainsFunc(r.steps, func(s step) bool { return s.untracks })
}

// decides reports whether a rule can end a packet's traversal of its chain,
// and calls each with the chains that it can send packets to.
func (r *code) decides(each func(*chain)) (decides bool) {
	visit := func(all []verdict) {
		for _, v := range all {
			decides = decides || v.kind != proceed
			if v.target != nil {
				each(v.target)
			}
		}
	}
	visit(r.verdicts)
	for _, s := range r.maps {
		for e := range s.all() {
			visit(e.verdict)
		}
	}
	return decides
}

// reach adds to set all rules that can be reached from a chain.
func (c *chain) reach(set map[*rule]bool, chains map[*chain]bool) {
	if chains[c] {
		return
	}
	chains[c] = true
	for _, r := range c.rules {
		set[r] = true
		r.decides(func(target *chain) { target.reach(set, chains) })
	}
}

// machine follows packets of one form through chains.
type machine struct {
	*form
	registers [64]octet
	// verdicts that a step has produced: several if it is not known which
	// applies.
	verdicts []verdict
	hit      func(r *rule, why string) bool // returns whether to go on
	silence  func(r *rule, s *step)         // called for steps that are silent, if it is not nil
	stopped  bool
	budget   int // of rules: chains that jump to each other multiply them

	partial    bool   // some packets may not get to the rules that are followed
	untracks   bool   // all packets have reached a rule that keeps them from conntrack
	dropper    *rule  // the latest one reached that drops
	translates bool   // a rule reached may translate addresses
	retracks   bool   // a rule reached may change what conntrack knows of packets
	lacks      string // what the rule depends on and express packets lack at the hook
	affected   bool   // a step was reached that does more than check

	marks *marks // what is known of marks; nil if they are not followed
	at    *rule  // that is applied
	whole bool   // all packets that are followed have got to this step

	change *Change // stops where packets reach a rule that has changed; or nil
}

// maxRules is how many rules a packet is followed through before it counts as
// touched. In the kernel a packet traverses fewer, but there the branch is
// known.
const maxRules = 1 << 17

// maxDepth is more than the depth of jumps that the kernel allows.
const maxDepth = 64

// outcome is where packets may be after a chain: several bits if that is not
// known, or not the same for all.
type outcome uint8

const (
	passed   outcome = 1 << iota // they have reached its end
	accepted                     // by the base chain
	dropped                      // by any rule
)

// run follows packets through a chain.
func (m *machine) run(c *chain, depth int) (left outcome) {
	asked := m.marks != nil && m.marks.asked
	for _, r := range m.rulesOf(c) {
		if m.budget--; m.budget < 0 || depth > maxDepth {
			m.touch(r, "too many rules to follow")
			m.stopped = true
		}
		if m.stopped {
			return left
		}
		if m.change.has(r) {
			m.stopped = m.stopped || m.differs(r)
			if m.stopped || r.gone || r.added || len(m.change.sets[r]) == 0 {
				continue
			}
			// Its set has changed, and they find what they found before: they go on by that.
		}
		m.whole = left == 0 && !m.partial
		if m.marks != nil {
			m.marks.asked = asked
		}
		matched := m.apply(r)
		if matched == no {
			continue
		}
		certain := matched == yes && len(m.verdicts) == 1
		verdicts, partial := m.verdicts, m.partial
		if matched == yes && left == 0 && !partial && r.untracks() {
			m.untracks = true
		}
		for _, v := range verdicts {
			m.partial = partial || !certain || left != 0
			after := m.follow(r, v, depth)
			m.partial = partial
			if v.kind == jump {
				certain = certain && after&passed == 0
				after &^= passed
			}
			left |= after
			if certain && v.kind != proceed {
				return left
			}
		}
		asked = asked || m.marks != nil && m.marks.asked && left != 0
	}
	return left | passed
}

// rulesOf returns the rules that packets are followed through in a chain.
func (m *machine) rulesOf(c *chain) []*rule {
	if m.change == nil {
		return c.rules
	}
	return m.change.rulesOf(c)
}

// follow follows packets from a rule with a verdict, and returns where they
// may be afterwards.
func (m *machine) follow(r *rule, v verdict, depth int) outcome {
	switch v.kind {
	case accepts:
		m.settle()
		return accepted
	case drops, rejects:
		m.settle()
		m.dropper = r
		if v.kind == rejects && m.first {
			m.touch(r, "reject")
		}
		return dropped
	case back:
		return passed
	case jump, goTo:
		return m.run(v.target, depth+1)
	default:
		return 0
	}
}

// apply follows packets through one rule and sets m.verdicts.
func (m *machine) apply(r *rule) truth {
	r.ready()
	t := yes
	why := ""
	m.verdicts, m.lacks, m.at = nil, "", r
	for i := range r.steps {
		s := &r.steps[i]
		m.affected = m.affected || !s.pure
		if s.check == nil {
			if m.bare { // express packets pass it, too
				t = varies
				continue
			}
			m.touch(r, s.reason())
			return varies
		}
		if m.silence != nil && s.silent != nil && s.silent() {
			m.silence(r, s)
		}
		u := s.check(m)
		if u == no {
			return no
		}
		if u == varies && why == "" {
			why = s.reason()
		}
		t = t.and(u)
		m.whole = m.whole && u == yes
	}
	if m.bare {
		why = m.lacks
	}
	if t == varies && !m.first && why != "" {
		m.touch(r, why)
	}
	if m.verdicts == nil {
		m.verdicts = r.verdicts
	}
	return t
}

func (s *step) reason() string {
	if s.why != "" {
		return s.why
	}
	return s.text
}

func (m *machine) touch(r *rule, why string) {
	if !m.stopped && !m.hit(r, why) {
		m.stopped = true
	}
}

// always is a step without effect on express packets.
func always(text string) step {
	return step{text: text, check: func(*machine) truth { return yes }}
}

// translating is a step that may translate the addresses of first packets.
func translating(text string) step {
	return step{text: text, check: func(m *machine) truth {
		m.translates = true
		return yes
	}}
}

// untracking is a step that keeps packets from conntrack.
func untracking(text string) step {
	s := retracking(text)
	s.untracks = true
	return s
}

// retracking is a step that may change how conntrack tracks first packets.
func retracking(text string) step {
	return step{text: text, check: func(m *machine) truth {
		m.retracks = true
		return yes
	}}
}

// expecting is a step by which conntrack may parse connections and expect
// others, whose first packets are RELATED.
func expecting(s step) step {
	s.expects = true
	return s
}

// zoning is a step that may put packets into a conntrack zone. A connection in
// a zone is found only with the zone, so that conntrack does not know the
// connection is not certain.
func zoning(text string) step {
	return step{text: text, why: "ct zone", check: func(m *machine) truth {
		m.retracks = true
		if m.conn.Untracked {
			return varies
		}
		return yes
	}}
}

// silently is a step that depends on what changes without an announcement.
func silently(s step) step {
	s.silent = func() bool { return true }
	return s
}

// marking is a step that depends on a connection's mark.
func marking(s step) step {
	s = silently(s)
	s.byMark = true
	return s
}

// unsure is a condition that is the same for all packets of a connection, but
// not known.
func unsure(text string) step {
	return step{text: text, pure: true, check: func(*machine) truth { return maybe }}
}

// judging is a condition that differs between packets.
func judging(text, why string) step {
	return step{text: text, why: why, pure: true, check: func(*machine) truth { return varies }}
}

// needing is a step that every packet has to pass, since it counts, reports or
// changes the packet.
func needing(text, why string) step {
	return step{text: text, why: why}
}
