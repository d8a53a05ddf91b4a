package rules

import "slices"

// Conditions on what the kernel does not announce: sets of ipset, elements that
// expire or that packets add, marks and labels of connections.

// isSilent reports whether a rule depends on what changes without an announcement.
func (r *rule) isSilent() bool {
	return slices.ContainsFunc(r.steps, func(s step) bool { return s.silent != nil && s.silent() })
}

// matters reports whether a rule that Live follows has to be kept, whatever is known
// of the packets that get there.
func (r *rule) matters() bool { return r.judges || r.untracking || r.silent }

// IsSilent reports whether some connection may reach a rule as Silent finds.
func (r Ruleset) IsSilent() bool { return r.silent }

// HasLegacy reports whether there were tables of iptables-legacy, which may change
// without an announcement.
func (r Ruleset) HasLegacy() bool { return r.hasLegacy }

// LegacyTables reports whether there are tables of iptables-legacy now.
func LegacyTables() (bool, error) {
	for _, s := range legacySources {
		if names, err := s.tableNames(); err != nil || len(names) > 0 {
			return true, err
		}
	}
	return false, nil
}

// Silence is how rules that packets of a connection may reach depend on what changes
// without an announcement.
type Silence uint8

// By nothing; by the connection's mark alone, which conntrack can be asked for; by more.
const (
	NoSilence Silence = iota
	MarkSilence
	FullSilence
)

// Silent finds a rule that packets of a connection may reach, in either direction, and
// that depends on what changes without an announcement.
func (r Ruleset) Silent(c Conn) (found Rule, is Silence) {
	if !r.silent {
		return found, NoSilence
	}
	unreplied := isUnreplied(&c)
	m := machine{
		hit: func(*rule, string) bool { return true },
		silence: func(r *rule, s *step) {
			now := FullSilence
			if s.byMark {
				now = MarkSilence
			}
			if now > is {
				found, is = r.describe(s.reason()), now
			}
		},
	}
	for _, b := range r.bases {
		b.followWith(&m, &c, unreplied)
		if m.stopped {
			is = FullSilence
		}
		if is == FullSilence {
			break
		}
	}
	return found, is
}
