package rules

import "bytes"

// exactCounters are the counters that must miss no packet, by name, and
// whether a rule has been read that has them.
type exactCounters map[string]bool

func newExactCounters(opts Options) exactCounters {
	c := make(exactCounters, len(opts.ExactCounters))
	for _, name := range opts.ExactCounters {
		c[name] = false
	}
	return c
}

// has reports whether a rule's counter is among them. Its names are that of the
// counter itself, and comments.
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

// MissingCounters lists those of Options.ExactCounters that no rule has that
// packets of an established connection may meet.
func (r Ruleset) MissingCounters() (names []string) {
	for _, name := range r.opts.ExactCounters {
		if !r.exact[name] {
			names = append(names, name)
		}
	}
	return names
}

// udataComment reads the comment that nft keeps with a rule or a chain.
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

// cString reads a string up to the zero byte at its end.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
