// Package rules reads the packet filter of the calling thread's network
// namespace (nftables, and iptables of both kinds) and finds the connections
// that must not go express: those that may reach a rule which judges single
// packets, by their number, rate, length or anything else that differs between
// packets of one connection.
//
// It follows packets through the rules with what is known of a connection's
// packets, which is not everything: a condition holds for every packet, for
// none, or perhaps. What this package does not know counts as a judgement of
// single packets.
package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/api"
	"github.com/scon-project/scon/internal/express/nfhooks"
)

// Options say what to read, and what else a rule needs every packet for.
type Options struct {
	// ExactCounters are counters that must miss no packet: named counters of
	// nftables, and those of rules or nftables chains with such a comment.
	ExactCounters []string
	// Foreign are functions at Netfilter's hooks that are no rules: what passes
	// them stays regular.
	Foreign []nfhooks.Hook
	// Tracked says of which families conntrack sees packets, by
	// unix.NFPROTO_IPV4 and NFPROTO_IPV6; nil if that is not known.
	Tracked map[uint8]bool
	// Drops also reads what only the first packet of a connection reaches, and
	// what packets for this host reach. Discardable needs it.
	Drops bool
	// Ends has HidesEnds know of the rules of all tables, which takes longer.
	Ends bool
}

// Rule is a rule that judges single packets.
type Rule struct {
	Table  string // "inet filter"; "iptables-legacy filter"
	Chain  string
	Handle uint64 // nftables' handle; in iptables-legacy the number in its chain
	Text   string // the rule, nearly as nft prints it
	Why    string // what in it judges single packets: "limit"
}

// String identifies the rule: "ip filter FORWARD handle 7 (limit)".
func (r Rule) String() string {
	if r.OfQueue() {
		return r.Text
	}
	if r.Handle == 0 {
		return fmt.Sprintf("%s %s (%s)", r.Table, r.Chain, r.Why)
	}
	return fmt.Sprintf("%s %s handle %d (%s)", r.Table, r.Chain, r.Handle, r.Why)
}

// Document is the rule for clients, nil for what is no rule.
func (r Rule) Document() *api.Rule {
	if r.Foreign() || r.OfQueue() {
		return nil
	}
	return &api.Rule{Table: r.Table, Chain: r.Chain, Handle: r.Handle, Text: r.Text}
}

// ByCounter reports whether only a counter that the user wants to be exact
// needs the packets.
func (r Rule) ByCounter() bool { return strings.HasPrefix(r.Why, exactCounter) }

// Remedy is what lets the connections go express that the rule keeps regular.
func (r Rule) Remedy() string {
	switch {
	case r.OfQueue():
		return "they go express without that option: 'tc qdisc change', for cake 'nonat', where fairness among containers is not needed"
	case r.Foreign():
		return "remove it if nothing needs it: it is not a rule, so its effect is unknown"
	case r.ByCounter():
		return "remove its name from exact_counters, if it may miss express packets"
	case r.Why == flowAdd:
		return "remove its flowtable ('nft delete table " + r.Table + "', if the table has nothing else): its connections go on"
	default:
		return "accept established connections in an earlier rule, if this one concerns new connections"
	}
}

// Ruleset is the rules that were read, reduced to what can lead to a rule that
// judges single packets. It does not change and is safe for concurrent use.
type Ruleset struct {
	bases     []*base
	outer     []*base // those that see the outer packets of a tunnel
	perPacket []Rule
	opts      Options
	exact     *exactCounters
	whole     []*base // with opts.Drops: all, in the order of their priorities
	expects   bool    // with opts.Drops: conntrack may expect connections
	legacy    uint64  // digest of iptables-legacy's tables
	early     []*base // those that may keep packets from conntrack
	tabled    map[family]bool
	hidesEnds bool   // there are rules by which conntrack does not announce the end of connections
	timesOut  bool   // there was a rule that gives connections a timeout policy
	silent    bool   // there are rules that depend on what changes without an announcement
	marked    bool   // rules give connections marks that matter to them
	carries   []bool // of bases: see orderMarks
	hasLegacy bool   // there are tables of iptables-legacy
}

// Read reads the ruleset. A missing right to read it is an error, never an
// empty ruleset.
func Read(opts Options) (r Ruleset, err error) {
	err = reading(opts, func(exact *exactCounters) (err error) {
		r, err = readWith(opts, exact)
		return err
	})
	return r, err
}

func readWith(opts Options, exact *exactCounters) (Ruleset, error) {
	n, err := readNFTables(opts, exact, nil)
	if err != nil {
		return Ruleset{}, fmt.Errorf("read nftables: %w", err)
	}
	for _, t := range n.tables {
		for _, c := range t.chains {
			c.rules, c.contents = c.all, nil
		}
	}
	others, tables, err := readOthers(opts, exact)
	if err != nil {
		return Ruleset{}, err
	}
	r := newRuleset(append(n.bases, others...), opts)
	r.exact, r.legacy = exact, digest(tables)
	r.tabled, err = legacyFamilies()
	r.hasLegacy = len(r.tabled) > 0
	n.addFamilies(r.tabled)
	return r, err
}

// legacyFamilies returns the families of which iptables-legacy has tables.
func legacyFamilies() (map[family]bool, error) {
	found := make(map[family]bool)
	for _, s := range legacySources {
		names, err := s.tableNames()
		if err != nil {
			return nil, fmt.Errorf("read iptables-legacy: %w", err)
		}
		if len(names) > 0 {
			found[s.form.family] = true
		}
	}
	return found, nil
}

// addFamilies adds those of nftables' tables.
func (n *nftables) addFamilies(found map[family]bool) {
	for key := range n.tables {
		for _, f := range familiesOf(key.family) {
			found[f] = true
		}
	}
}

// readOthers reads iptables-legacy, whose tables it returns as well, and adds functions
// that are no rules.
func readOthers(opts Options, exact *exactCounters) (bases []*base, tables []legacyTable, err error) {
	if tables, err = readLegacyTables(opts); err != nil {
		return nil, nil, fmt.Errorf("read iptables-legacy: %w", err)
	}
	bases, err = parseOthers(tables, opts, exact)
	return bases, tables, err
}

func parseOthers(tables []legacyTable, opts Options, exact *exactCounters) (bases []*base, err error) {
	for _, t := range tables {
		found, err := t.parse(exact)
		if err != nil {
			return nil, fmt.Errorf("read iptables-legacy: table %s: %w", t.name, err)
		}
		bases = append(bases, found...)
	}
	return append(bases, foreignBases(opts.Foreign)...), nil
}

// Stale reports whether rules have changed without an announcement: those of
// iptables-legacy.
func (r Ruleset) Stale() (bool, error) {
	tables, err := readLegacyTables(r.opts)
	if err != nil {
		return false, fmt.Errorf("read iptables-legacy: %w", err)
	}
	return digest(tables) != r.legacy, nil
}

// ErrTooMany means that there are more rules than Options.Drops reads. In a
// cluster there may be so many that reading them would take too long.
var ErrTooMany = errors.New("too many rules to find out which packets they drop")

// mostDropRules and mostDropBytes bound what Options.Drops reads: rules of
// nftables, and bytes of a table of iptables-legacy.
const (
	mostDropRules = 4096
	mostDropBytes = 1 << 20
)

// errChanged means that the rules have changed while they were read.
var errChanged = errors.New("rules changed while they were read")

// attempts is how often rules that change meanwhile are read again.
const attempts = 5

// retry reads until the rules have not changed meanwhile.
func retry(read func() error) (err error) {
	for range attempts {
		if err = read(); !errors.Is(err, errChanged) {
			break
		}
	}
	return err
}

// newRuleset keeps of the base chains what decides whether packets reach a
// rule that judges single packets.
func newRuleset(bases []*base, opts Options) Ruleset {
	r := Ruleset{opts: opts}
	hits, chains := make(map[*rule]bool), make(map[*chain]bool)
	for _, b := range bases {
		if b.starting() && !b.outer() || !b.findHits(hits, chains) {
			continue
		}
		if !b.starting() {
			r.bases = append(r.bases, b)
		}
		if b.outer() {
			r.outer = append(r.outer, b)
		}
	}
	for _, b := range bases {
		if b.isEarly() && b.marksUntracking(hits) {
			r.early = append(r.early, b)
		}
	}
	r.hidesEnds = anyStep(bases, func(s step) bool { return s.hidesEnd })
	if opts.Drops {
		r.whole = slices.SortedStableFunc(slices.Values(bases), func(a, b *base) int { return cmp.Compare(a.priority, b.priority) })
		clear(chains) // keep every rule
		r.expects = anyStep(bases, func(s step) bool { return s.expects })
	}
	for hit := range hits {
		r.silent = r.silent || hit.isSilent()
	}
	r.orderMarks()
	for c := range chains {
		c.rules = slices.DeleteFunc(c.rules, func(r *rule) bool {
			return !hits[r] && !r.decides(func(*chain) {})
		})
	}
	r.perPacket = r.list()
	return r
}

// list lists the rules that judge single packets of established connections.
func (r *Ruleset) list() (found []Rule) {
	listed := make(map[*rule]bool)
	for _, b := range r.bases {
		b.follow(&Conn{}, false, func(hit *rule, why string) bool {
			if !listed[hit] {
				listed[hit] = true
				found = append(found, hit.describe(why))
			}
			return true
		})
	}
	return found
}

// anyStep reports whether a step of a rule is such a one.
func anyStep(bases []*base, is func(step) bool) bool {
	rules, chains := make(map[*rule]bool), make(map[*chain]bool)
	for _, b := range bases {
		b.chain.reach(rules, chains)
	}
	for r := range rules {
		if slices.ContainsFunc(r.steps, is) {
			return true
		}
	}
	return false
}

// Judges reports whether any rule may judge single packets of a connection.
func (r Ruleset) Judges() bool { return len(r.bases) > 0 }

// HidesEnds reports whether conntrack may not announce the end of connections, by a rule that
// chooses what it announces.
func (r Ruleset) HidesEnds() bool { return r.hidesEnds }

// TimesOut reports whether connections may have timeout policies, of which conntrack tells
// nothing: their timeouts may be shorter than its own, in each state.
func (r Ruleset) TimesOut() bool { return r.timesOut }

// PerPacket lists the rules that judge single packets of established
// connections.
func (r Ruleset) PerPacket() []Rule { return r.perPacket }

// Touches finds a rule that judges single packets and that packets of a
// connection may reach, in either direction.
func (r Ruleset) Touches(c Conn) (found Rule, touched bool) {
	unreplied := isUnreplied(&c)
	for _, b := range r.bases {
		b.follow(&c, unreplied, func(hit *rule, why string) bool {
			found, touched = hit.describe(why), true
			return false
		})
		if touched {
			return found, touched
		}
	}
	return r.unsettled(&c, unreplied)
}
