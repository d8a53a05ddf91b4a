package rules

import "encoding/binary"

// A connection's mark is a state that its own packets may change: where one rule gives mark 2 to
// connections of mark 1 and another one drops those of mark 2, a packet decides about the next
// one. Such a connection is settled if its mark, as conntrack has it, is one that its packets
// leave as it is, by every base chain alone. Only then its packets meet the same rules.

// markUse is what rules have to do with marks.
type markUse uint8

const (
	setsPacketMark markUse = 1 << iota
	setsConnMark
)

// markUse returns what a rule has to do with marks.
func (r *code) markUse() (all markUse) {
	for i := range r.steps {
		all |= r.steps[i].marks
	}
	return all
}

// mark is what is known of a mark: the bits that are known, and their value.
type mark struct{ value, known uint32 }

func markOf(value uint32) mark { return mark{value, ^uint32(0)} }

// loadMark returns what octets hold, of a mark as the host has it.
func loadMark(octets []octet) mark {
	var value, known [4]byte
	for i := range value {
		value[i], known[i] = octets[i].value, octets[i].known
	}
	return mark{binary.NativeEndian.Uint32(value[:]), binary.NativeEndian.Uint32(known[:])}
}

// store is the opposite of loadMark.
func (m mark) store(octets []octet) {
	var value, known [4]byte
	binary.NativeEndian.PutUint32(value[:], m.value)
	binary.NativeEndian.PutUint32(known[:], m.known)
	for i := range value {
		octets[i] = octet{value: value[i] & known[i], known: known[i]}
	}
}

// is reports whether a mark is certainly another one.
func (m mark) is(other mark) bool { return m == other && m.known == ^uint32(0) }

// or is what is known of a mark that is one of two.
func (m mark) or(other mark) mark {
	m.known &= other.known &^ (m.value ^ other.value)
	m.value &= m.known
	return m
}

// changed is a mark with bits cleared, and those of another one inverted then.
func (m mark) changed(cleared uint32, inverted mark) mark {
	m.known = (m.known | cleared) & inverted.known
	m.value = (m.value&^cleared ^ inverted.value) & m.known
	return m
}

// masked is a mark of which only some bits are left.
func (m mark) masked(bits uint32) mark { return mark{m.value & bits, m.known | ^bits} }

// marks are those of the packets that are followed.
type marks struct {
	before       mark // of the connection, before the packet
	conn, packet mark // as they are now
	// alternatives means that the connection may have other devices outside than the ones
	// that are followed, byDevice that a condition was on such a device.
	alternatives, byDevice bool
	asked                  bool  // packets are at the rule because of a mark
	young                  bool  // no packet may have passed yet
	setter                 *rule // the latest one that set the connection's
	found                  *rule // one by which packets change the connection's mark

	// assumed is a rule of which it is assumed that packets do not meet its conditions: they have
	// another mark than it sets. That holds where all rules set that one, wherever they are, and
	// packets leave it as it is: else others may have taken it back.
	assumed *rule
	set     mark // by all rules
	sets    int  // 1: that one, 2: several
}

// hasMark reports whether packets have a connection with a mark.
func (m *machine) hasMark() bool { return m.marks != nil && (m.tracked || m.bridged) }

// connMark is what is known of the mark of the packets' connection.
func (m *machine) connMark() (now mark) {
	if m.hasMark() {
		now = m.marks.conn
	}
	return now
}

// setConnMark gives the connection a mark, which may depend on an earlier one. Where it is not
// known whether the packets do so, by conditions that are the same for all of a direction, and
// nothing depends on a mark, they do not: the connection would have it already.
func (m *machine) setConnMark(now mark, depends bool) {
	k := m.marks
	if !m.hasMark() {
		return
	}
	if k.sets == 0 {
		k.set, k.sets = now, 1
	} else if !now.is(k.set) {
		k.sets = 2
	}
	switch {
	case m.whole && !(k.alternatives && k.byDevice):
		k.conn, k.setter = now, m.at
	case now.is(k.before):
		k.conn = k.conn.or(now)
	case depends || k.asked || k.young:
		k.found = m.at
	default:
		k.assumed = m.at
	}
}

func (m *machine) setPacketMark(now mark) {
	if k := m.marks; k != nil && m.whole {
		k.packet = now
	} else if k != nil {
		k.packet = k.packet.or(now)
	}
}

// askDevice notes a condition on a device.
func (m *machine) askDevice(d *Device) {
	if k := m.marks; k != nil && (d == m.iif) != m.outward {
		k.byDevice = k.alternatives
	}
}

// settle finds out whether packets that leave a base chain have changed the connection's mark.
func (m *machine) settle() {
	if k := m.marks; k != nil && k.setter != nil && !k.conn.is(k.before) {
		k.found = k.setter
	}
}

// usesOf returns what the rules of base chains have to do with marks.
func usesOf(bases []*base) (all markUse) {
	for _, b := range bases {
		all |= b.uses
	}
	return all
}

// findUses finds what the rules that packets of a base chain may reach have to do with marks.
func (b *base) findUses() {
	b.uses = 0
	for c := range b.reached(false) {
		for i, n := range c.marking {
			if n > 0 {
				b.uses |= 1 << i
			}
		}
	}
}

// place is where forwarded packets meet a base chain of IP's hooks, below 0 for others.
func (b *base) place() (at int64) {
	const most = 1 << 40 // priorities have 32 bits
	for _, h := range [...]hook{prerouting, forward, postrouting} {
		if at += most; h == b.hook {
			return at + int64(b.priority)
		}
	}
	return -1
}

// orderMarks orders base chains for unsettled. carries says of which the packets have the mark
// there that the ones before have left: not where other hooks change it, or where it is not
// known which of two is the first.
func (r *Ruleset) orderMarks() {
	if r.marked = usesOf(r.bases)&setsConnMark != 0; !r.marked {
		return
	}
	for i, b := range r.bases {
		for b.at = b.place(); i > 0 && r.bases[i-1].at > b.at; i-- {
			r.bases[i], r.bases[i-1] = r.bases[i-1], b
		}
	}
	r.carries = make([]bool, len(r.bases))
	for i, b := range r.bases {
		r.carries[i] = true
		for _, o := range r.bases {
			beside := o != b && o.at == b.at && (len(o.families)+len(b.families) > 2 || o.families[0] == b.families[0])
			if o.uses&setsPacketMark != 0 && (beside || o.at < 0) {
				r.carries[i] = false
			}
		}
	}
}

// unsettled finds a rule by which packets of a connection change its mark.
func (r *Ruleset) unsettled(c *Conn, unreplied bool) (found Rule, is bool) {
	young := c.Flags != 0 // programs compose it, whatever its mark is
	if !r.marked || c.Untracked || c.Status == 0 && !young {
		return found, false
	}
	k := marks{alternatives: len(c.Outside) > 1, young: young}
	if !young {
		k.before = markOf(c.Mark)
	}
	r.followMarks(c, unreplied, &k)
	if k.found == nil && k.assumed != nil {
		held := marks{alternatives: k.alternatives, before: k.set}
		if k.sets == 1 {
			r.followMarks(c, unreplied, &held)
		}
		if k.sets > 1 || held.found != nil || held.assumed != nil {
			k.found = k.assumed
		}
	}
	if k.found == nil {
		return found, false
	}
	return k.found.describe(connMarkName), true
}

// followMarks follows a connection's packets through all base chains, until one changes its mark.
func (r *Ruleset) followMarks(c *Conn, unreplied bool, k *marks) {
	m := machine{hit: goOn, marks: k}
	var carried [2][2]mark // the packets', by direction and family
	for i, b := range r.bases {
		left, any := carried, [2][2]bool{}
		b.forms(c, unreplied, func(f *form) {
			way := 0
			if f.reply {
				way = 1
			}
			k.conn, k.packet, k.asked, k.byDevice, k.setter = k.before, mark{}, false, false, nil
			if r.carries[i] {
				k.packet = carried[way][f.family]
			}
			m.form, m.budget = f, maxRules
			if m.run(b.chain, 0)&passed != 0 {
				m.settle()
			}
			if any[way][f.family] {
				k.packet = k.packet.or(left[way][f.family])
			}
			left[way][f.family], any[way][f.family] = k.packet, true
		})
		if k.found != nil {
			return
		}
		carried = left
	}
}
