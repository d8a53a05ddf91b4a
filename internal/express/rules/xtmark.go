package rules

// The matches and targets of iptables on marks of packets and connections.

// xtMark compiles a match on a packet's mark, or, of connections, on theirs (struct
// xt_mark_mtinfo1, xt_connmark_mtinfo1).
func xtMark(text string, ofConn bool, revision int, info []byte) (step, bool) {
	if revision != 1 || len(info) < 9 {
		return step{}, false
	}
	value, mask, inverted := native32(info, 0), native32(info, 4), info[8] != 0
	s := step{text: text, check: func(m *machine) truth {
		var now mark
		if m.marks != nil {
			m.marks.asked = true
			now = m.marks.packet
		}
		if ofConn {
			now = m.connMark()
		}
		t := maybe
		switch now = now.masked(mask); {
		case (now.value^value)&now.known != 0:
			t = no
		case now.known == ^uint32(0):
			t = yes
		}
		return t.invert(inverted)
	}}
	if ofConn {
		s = marking(s)
	}
	return s, true
}

// Modes of target CONNMARK (XT_CONNMARK_*), and target MARK.
const (
	connmarkSet = iota
	connmarkSave
	connmarkRestore
	markSet
)

// setsMark compiles target MARK (struct xt_mark_tginfo2).
func setsMark(text string, info []byte) step {
	return changesMark(text, markSet, native32(info, 0), 0, native32(info, 4), false)
}

// xtCONNMARK compiles target CONNMARK (struct xt_connmark_tginfo1, 2).
func xtCONNMARK(text string, revision int, info []byte) step {
	mode, shifts := info[12], false
	if revision == 2 {
		shifts, mode = info[13] != 0, info[14]
	}
	return marking(changesMark(text, mode, native32(info, 0), native32(info, 4), native32(info, 8), shifts))
}

// changesMark compiles a change of a mark. value is the one that is set.
func changesMark(text string, mode byte, value, ofConn, ofPacket uint32, shifts bool) step {
	use, depends := setsConnMark, mode == connmarkSave || shifts || value&^ofConn != 0
	if mode >= connmarkRestore {
		use = setsPacketMark
	}
	return step{text: text, marks: use, check: func(m *machine) truth {
		if m.marks == nil {
			return yes
		}
		conn, packet, from := m.connMark(), m.marks.packet, markOf(value)
		cleared, now := ofConn, conn
		switch mode {
		case connmarkSave:
			from = packet.masked(ofPacket)
		case connmarkRestore:
			from = conn.masked(ofConn)
			fallthrough
		case markSet:
			cleared, now = ofPacket, packet
		}
		if now = now.changed(cleared, from); shifts {
			now = mark{}
		}
		if use == setsConnMark {
			m.setConnMark(now, depends)
		} else {
			m.setPacketMark(now)
		}
		return yes
	}}
}
