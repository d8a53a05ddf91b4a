// Package rules reads the packet filter of the network namespace of the
// calling thread (nftables, and iptables in both of its kinds) and tells which
// connections it may not leave to the express path: those that a rule could
// touch which judges single packets, by their number, their rate, their length
// or whatever else differs between packets of one connection.
//
// A rule is followed with what is known of a connection's packets, which is
// not all: a condition holds for every packet, for none, or maybe. What this
// package does not know counts as a judgement of single packets.
package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/scon-project/scon/internal/express/nfhooks"
)

// Options say what else a rule needs every packet for.
type Options struct {
	// ExactCounters are counters that must miss no packet: named ones of
	// nftables, and those of rules or of nftables' chains with such a comment.
	ExactCounters []string
	// Foreign are functions at Netfilter's hooks that are no rules: what passes
	// them stays regular.
	Foreign []nfhooks.Hook
	// Drops reads as well what only the first packet of a connection meets,
	// and what packets for this host do: Discardable needs it.
	Drops bool
}

// Rule is a rule that judges single packets.
type Rule struct {
	Table  string // "inet filter"; "iptables-legacy filter"
	Chain  string
	Handle uint64 // nftables' handle; in iptables-legacy the number in its chain
	Text   string // what it says, nearly as nft writes it
	Why    string // what in it judges single packets: "limit"
}

// String names the rule for its owner: "ip filter FORWARD handle 7 (limit)".
func (r Rule) String() string {
	if r.Handle == 0 {
		return fmt.Sprintf("%s %s (%s)", r.Table, r.Chain, r.Why)
	}
	return fmt.Sprintf("%s %s handle %d (%s)", r.Table, r.Chain, r.Handle, r.Why)
}

// ByCounter means that nothing but a counter needs the packets that the user
// wants to be exact.
func (r Rule) ByCounter() bool { return strings.HasPrefix(r.Why, exactCounter) }

// Ruleset is what Read has read, reduced to what can lead to a rule that
// judges single packets. It does not change, and may be used concurrently.
type Ruleset struct {
	bases     []*base
	outer     []*base // those that packets of a tunnel's ends meet
	perPacket []Rule
	opts      Options
	exact     exactCounters
	whole     []*base // with opts.Drops: all, in the order of their priorities
	expects   bool    // with opts.Drops: conntrack may expect connections
	legacy    uint64  // digest of iptables-legacy's tables
}

// Read reads the ruleset. It is never empty for want of a right to read it:
// that is an error.
func Read(opts Options) (Ruleset, error) {
	exact := newExactCounters(opts)
	bases, err := readNFTables(opts, exact)
	if err != nil {
		return Ruleset{}, fmt.Errorf("read nftables: %w", err)
	}
	tables, err := readLegacyTables(opts)
	if err != nil {
		return Ruleset{}, fmt.Errorf("read iptables-legacy: %w", err)
	}
	for _, t := range tables {
		found, err := t.parse(exact)
		if err != nil {
			return Ruleset{}, fmt.Errorf("read iptables-legacy: table %s: %w", t.name, err)
		}
		bases = append(bases, found...)
	}
	r := newRuleset(append(bases, foreignBases(opts.Foreign)...), opts)
	r.exact, r.legacy = exact, digest(tables)
	return r, nil
}

// Stale reports whether rules have changed in a way that nothing announces:
// those of iptables-legacy.
func (r Ruleset) Stale() (bool, error) {
	tables, err := readLegacyTables(r.opts)
	if err != nil {
		return false, fmt.Errorf("read iptables-legacy: %w", err)
	}
	return digest(tables) != r.legacy, nil
}

// ErrTooMany says that there are more rules than Options.Drops reads: in a
// cluster they may be so many that nothing else could be done meanwhile.
var ErrTooMany = errors.New("more rules than are followed to tell what they drop")

// mostDropRules bounds what Options.Drops reads: rules of nftables, and bytes of
// a table of iptables-legacy.
const (
	mostDropRules = 4096
	mostDropBytes = 1 << 20
)

// errChanged means that the rules have changed while they were read.
var errChanged = errors.New("rules changed while they were read")

// attempts is how often rules that change meanwhile are read anew.
const attempts = 5

// retry reads until the rules have kept still.
func retry(read func() error) (err error) {
	for range attempts {
		if err = read(); !errors.Is(err, errChanged) {
			break
		}
	}
	return err
}

// newRuleset keeps of the base chains what decides whether packets come to a
// rule that judges them one by one.
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
	if opts.Drops {
		r.whole = slices.SortedStableFunc(slices.Values(bases), func(a, b *base) int { return cmp.Compare(a.priority, b.priority) })
		clear(chains) // keep every rule
		r.expects = expects(bases)
	}
	for c := range chains {
		c.rules = slices.DeleteFunc(c.rules, func(r *rule) bool {
			return !hits[r] && !r.decides(func(*chain) {})
		})
	}
	listed := make(map[*rule]bool)
	for _, b := range r.bases {
		b.follow(&Conn{}, false, func(hit *rule, why string) bool {
			if !listed[hit] {
				listed[hit] = true
				r.perPacket = append(r.perPacket, hit.describe(why))
			}
			return true
		})
	}
	return r
}

// expects reports whether a rule may have conntrack expect connections.
func expects(bases []*base) bool {
	rules, chains := make(map[*rule]bool), make(map[*chain]bool)
	for _, b := range bases {
		b.chain.reach(rules, chains)
	}
	for r := range rules {
		if slices.ContainsFunc(r.steps, func(s step) bool { return s.expects }) {
			return true
		}
	}
	return false
}

// PerPacket lists the rules that judge single packets of established
// connections.
func (r Ruleset) PerPacket() []Rule { return r.perPacket }

// Touches finds a rule that judges single packets and that packets of a
// connection may meet, in either direction.
func (r Ruleset) Touches(c Conn) (found Rule, touched bool) {
	oneWay := c.Status != 0 && c.Status&statusSeenReply == 0
	for _, b := range r.bases {
		b.follow(&c, oneWay, func(hit *rule, why string) bool {
			found, touched = hit.describe(why), true
			return false
		})
		if touched {
			break
		}
	}
	return found, touched
}
