package rules

import (
	"maps"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Untracked reports whether conntrack certainly sees no packet of a connection,
// given its tuples and devices: it is not enabled for the family, or rules say
// notrack of every packet, in both directions.
func (r Ruleset) Untracked(c Conn) bool {
	c.Conn, c.Untracked = conntrack.Conn{Orig: c.Orig, Reply: c.Reply}, true
	if !r.tracks(c.families()) {
		return true
	}
	for _, b := range r.early {
		if b.untracks(&c) {
			return true
		}
	}
	return false
}

// KnowsTracked reports whether it is known of which families conntrack sees packets.
func (r Ruleset) KnowsTracked() bool { return r.opts.Tracked != nil }

// TracksBridges reports whether conntrack has functions at the hooks of bridges: it sees
// what these forward without showing it to IP's hooks.
func (r Ruleset) TracksBridges() bool { return r.opts.Tracked[unix.NFPROTO_BRIDGE] }

// tracks reports whether conntrack may see packets of one of these families. Where
// the kernel does not list its hooks, any table may have enabled it.
func (r Ruleset) tracks(families []family) bool {
	for _, f := range families {
		if r.opts.Tracked == nil && r.tabled[f] || r.opts.Tracked[f.nfproto()] {
			return true
		}
	}
	return false
}

// tracksOthers reports whether conntrack is enabled for other families than before.
func (r Ruleset) tracksOthers(before Ruleset) bool {
	return !maps.Equal(r.opts.Tracked, before.opts.Tracked) || !maps.Equal(r.tabled, before.tabled)
}

// isEarly reports whether the chain sees packets before conntrack does.
func (b *base) isEarly() bool { return b.hook == prerouting && b.priority < priorityConntrack }

// marksUntracking adds the rules to hits that keep packets from conntrack, and
// reports whether there are any.
func (b *base) marksUntracking(hits map[*rule]bool) (found bool) {
	rules, chains := make(map[*rule]bool), make(map[*chain]bool)
	b.chain.reach(rules, chains)
	for r := range rules {
		if r.untracks() {
			hits[r], found = true, true
		}
	}
	return found
}

// untracks reports whether the chain keeps every packet of a connection from
// conntrack.
func (b *base) untracks(c *Conn) bool {
	all := true
	m := machine{hit: func(*rule, string) bool { return true }}
	b.forms(c, false, func(f *form) {
		if !all {
			return
		}
		m.form, m.budget, m.untracks = f, maxRules, false
		m.run(b.chain, 0)
		all = m.untracks && !m.stopped
	})
	return all && len(b.familiesOf(c)) > 0
}
