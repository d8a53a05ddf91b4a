package rules

import (
	"fmt"
	"strings"
)

// The conditions of a match on conntrack (XT_CONNTRACK_*).
const (
	checkState = 1 << iota
	checkProto
	checkOrigSrc
	checkOrigDst
	checkReplSrc
	checkReplDst
	checkStatus
	checkExpires
	checkOrigSrcPort
	checkOrigDstPort
	checkReplSrcPort
	checkReplDstPort
	checkDirection
)

// Bits of a state beyond those that nftables has.
const (
	xtStateSNAT = 1 << 6
	xtStateDNAT = 1 << 7
)

func xtState(_ int, info []byte) (step, bool) {
	if len(info) < 4 {
		return step{}, false
	}
	mask := uint16(native32(info, 0))
	return step{text: "-m state --state " + xtStateText(mask), check: func(m *machine) truth {
		return m.inState(mask &^ (xtStateSNAT | xtStateDNAT))
	}}, true
}

// inState checks whether the packet's state is one of mask.
func (m *machine) inState(mask uint16) truth {
	if m.state() == 0 {
		return maybe
	}
	if (m.state()|m.translations())&mask != 0 {
		return yes
	}
	const both = xtStateSNAT | xtStateDNAT
	if m.conn.Status == 0 && mask&both != 0 {
		return maybe
	}
	return no
}

// translations are the state bits of address translation.
func (m *machine) translations() (bits uint16) {
	if m.conn.Status&statusSrcNAT != 0 {
		bits |= xtStateSNAT
	}
	if m.conn.Status&statusDstNAT != 0 {
		bits |= xtStateDNAT
	}
	return bits
}

func xtStateText(mask uint16) string {
	var names []string
	for i, name := range []string{"INVALID", "ESTABLISHED", "RELATED", "NEW", "", "", "SNAT", "DNAT", "UNTRACKED"} {
		if mask&(1<<i) != 0 && name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// xtConntrack compiles xt_conntrack_mtinfo1, 2 and 3.
func xtConntrack(revision int, info []byte) (step, bool) {
	if revision < 1 || revision > 3 || len(info) < map[int]int{1: 152, 2: 154, 3: 162}[revision] {
		return step{}, false
	}
	c := conntrackMatch{info: info, revision: revision, checks: native16(info, 146), inverted: native16(info, 148)}
	c.states, c.status = native16(info, 150), 0
	if revision == 1 {
		c.states, c.status = uint16(info[150]), uint16(info[151])
	} else {
		c.status = native16(info, 152)
	}
	return step{text: c.text(), why: "conntrack expiration or status", check: c.check}, true
}

// conntrackMatch is a match on conntrack.
type conntrackMatch struct {
	info             []byte
	revision         int
	checks, inverted uint16
	states, status   uint16
}

func (c *conntrackMatch) text() string {
	text := "-m conntrack"
	if c.checks&checkState != 0 {
		text += " "
		if c.inverted&checkState != 0 {
			text += "! "
		}
		text += "--ctstate " + xtStateText(c.states)
	}
	if rest := c.checks &^ checkState; rest != 0 {
		text += fmt.Sprintf(" (checks 0x%x)", rest)
	}
	return text
}

func (c *conntrackMatch) check(m *machine) truth {
	t := yes
	add := func(check uint16, u truth) { t = t.and(u.invert(c.inverted&check != 0)) }
	if c.checks&checkExpires != 0 {
		t = varies
	}
	if c.checks&checkState != 0 {
		add(checkState, m.inState(c.states))
	}
	if c.checks == checkState {
		return t
	}
	if !m.connected() {
		return t.and(maybe)
	}
	if c.checks&checkProto != 0 {
		add(checkProto, equal(m.protocol(), []byte{byte(native16(c.info, 136))}, nil))
	}
	if c.checks&checkDirection != 0 {
		add(checkDirection, truthOf(!m.reply))
	}
	if c.checks&checkStatus != 0 {
		add(checkStatus, m.hasStatus(uint32(c.status)))
	}
	for i := origSrc; i <= replyDst; i++ { // in its order, too
		end := m.conn.end(i)
		if check := uint16(checkOrigSrc << i); c.checks&check != 0 {
			addr := make([]octet, len(m.source()))
			end.setAddr(addr)
			add(check, equal(addr, c.info[32*i:32*i+len(addr)], c.info[32*i+16:32*i+16+len(addr)]))
		}
		if check := uint16(checkOrigSrcPort << i); c.checks&check != 0 {
			var port [2]octet
			end.setPort(port[:])
			u := maybe // in network order, in older revisions
			if c.revision == 3 {
				u = portBetween(port[:], native16(c.info, 138+2*i), native16(c.info, 154+2*i))
			}
			add(check, u)
		}
	}
	return t
}

// hasStatus checks whether the connection has one of the bits of its status.
func (m *machine) hasStatus(bits uint32) truth {
	value, mask, differs := m.status()
	switch {
	case value&bits != 0:
		return yes
	case differs&bits != 0:
		return varies
	case bits&^mask != 0:
		return maybe
	default:
		return no
	}
}
