package rules

import "bytes"

// exactCounters are the counters that must miss no packet.
type exactCounters struct {
	named map[string]bool // by name, and whether a rule with it was read
	// compared means that rules compare counters of sets of ipset, ofSets that such
	// counters must miss no packet: it was known before the first rule was read.
	compared, ofSets bool
}

func newExactCounters(opts Options) *exactCounters {
	c := &exactCounters{named: make(map[string]bool, len(opts.ExactCounters))}
	for _, name := range opts.ExactCounters {
		c.named[name] = false
	}
	return c
}

// reading calls read with exact counters; a second time if only the rules that it has read
// say that those of sets are among them.
func reading(opts Options, read func(*exactCounters) error) error {
	c := newExactCounters(opts)
	err := read(c)
	if err == nil && c.late() {
		c = newExactCounters(opts)
		c.ofSets = true
		err = read(c)
	}
	return err
}

// setCounters is why a rule needs packets that it counts in a set of ipset.
const setCounters = "counters of a set that a rule compares"

// late reports whether counters of sets must miss no packet, which the rules before were
// read without.
func (c *exactCounters) late() bool { return c.compared && !c.ofSets }

// match compiles a match of iptables. All rules that look into a set of ipset count in its
// elements, whichever rule compares the counters.
func (c *exactCounters) match(name string, revision int, info []byte) step {
	s := xtMatch(name, revision, info)
	s.pure = s.check != nil // a match changes no packet
	if name != "set" {
		return s
	}
	compares, counts := xtSetCounters(revision, info)
	c.compared = c.compared || compares
	if counts && !compares && c.ofSets {
		return needing(s.text, setCounters)
	}
	return s
}

// has reports whether a rule's counter is among them. Its names are the
// counter's own and comments.
func (c *exactCounters) has(names ...string) (name string, ok bool) {
	for _, name := range names {
		if _, ok := c.named[name]; ok {
			c.named[name] = true
			return name, true
		}
	}
	return "", false
}

const exactCounter = "exact counter "

// counting is a step that counts each packet.
func counting(text, name string) step { return needing(text, exactCounter+name) }

// MissingCounters lists those of Options.ExactCounters that are in no rule
// which packets of an established connection may reach.
func (r Ruleset) MissingCounters() (names []string) {
	for _, name := range r.opts.ExactCounters {
		if !r.exact.named[name] {
			names = append(names, name)
		}
	}
	return names
}

// udataComment returns the comment that nft stores with a rule or a chain.
func udataComment(data []byte) string {
	const comment = 0 // NFTNL_UDATA_RULE_COMMENT, NFTNL_UDATA_CHAIN_COMMENT
	for len(data) >= 2 {
		typ, size := data[0], int(data[1])
		if data = data[2:]; size > len(data) {
			break
		}
		if typ == comment {
			return cString(data[:size])
		}
		data = data[size:]
	}
	return ""
}

// cString returns a string up to its terminating zero byte.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
