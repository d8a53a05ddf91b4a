package rules

import "bytes"

// exactCounters are the counters that must miss no packet, by name, and
// whether a rule with them was read.
type exactCounters map[string]bool

func newExactCounters(opts Options) exactCounters {
	c := make(exactCounters, len(opts.ExactCounters))
	for _, name := range opts.ExactCounters {
		c[name] = false
	}
	return c
}

// has reports whether a rule's counter is among them. Its names are the
// counter's own and comments.
func (c exactCounters) has(names ...string) (name string, ok bool) {
	for _, name := range names {
		if _, ok := c[name]; ok {
			c[name] = true
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
		if !r.exact[name] {
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
