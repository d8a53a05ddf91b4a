package rules

import (
	"encoding/binary"
	"slices"
)

// silentTargets do not change packets, or only in ways that are seen at the
// end of the regular path: marks, priority, DSCP.
var silentTargets = []string{
	"CLASSIFY", "DSCP",
}

// Targets that translate addresses: of a connection's first packet.
var translatingTargets = []string{"DNAT", "MASQUERADE", "NETMAP", "REDIRECT", "SNAT"}

// xtTarget compiles a target and returns its verdict. Unknown targets need
// every packet.
func xtTarget(name string, revision int, info []byte) (s step, v verdict, ending string) {
	text := "-j " + name
	switch {
	case name == "REJECT":
		return always(""), verdict{kind: rejects}, text
	case slices.Contains(silentTargets, name):
		return always(text), verdict{}, ""
	case name == "MARK" && revision == 2 && len(info) >= 8:
		return setsMark(text, info), verdict{}, ""
	case name == "HMARK":
		return step{text: text, marks: setsPacketMark, check: func(m *machine) truth {
			m.setPacketMark(mark{})
			return yes
		}}, verdict{}, ""
	case name == "NOTRACK":
		return untracking(text), verdict{}, ""
	case name == "CONNMARK" && (revision == 1 || revision == 2) && len(info) >= 15:
		return xtCONNMARK(text, revision, info), verdict{}, ""
	case name == "CONNSECMARK" || name == "SECMARK":
		return silently(always(text)), verdict{}, "" // SELinux judges packets by such a mark
	case name == "CT":
		return xtCT(text, info), verdict{}, ""
	case slices.Contains(translatingTargets, name):
		return translating(text), verdict{}, ""
	case name == "TOS" && revision == 1 && len(info) >= 2 && (info[0]|info[1])&0x03 == 0: // ECN stays what it was
		return always(text), verdict{}, ""
	default:
		return needing(text, name), verdict{}, ""
	}
}

// xtCT compiles target CT (struct xt_ct_target_info), which may put packets
// into a zone or assign a helper.
func xtCT(text string, info []byte) (s step) {
	const zoneOfEither, zoneOfMark, helper = 1<<2 | 1<<3, 1 << 4, 12 // XT_CT_ZONE_DIR_*, XT_CT_ZONE_MARK
	const notrack = 1 << 0                                           // XT_CT_NOTRACK
	s = retracking(text)
	if len(info) >= 4 && binary.NativeEndian.Uint16(info)&notrack != 0 {
		s = untracking(text + " --notrack")
	}
	if len(info) < 4 || binary.NativeEndian.Uint16(info)&(zoneOfEither|zoneOfMark) != 0 || binary.NativeEndian.Uint16(info[2:]) != 0 {
		s = zoning(text + " --zone")
	}
	if len(info) <= helper || info[helper] != 0 {
		s = expecting(s)
	}
	s.hidesEnd = hidesEnd(info)
	return s
}

// timesOut reports whether target CT gives connections a timeout policy.
func timesOut(info []byte) bool {
	const timeout = 28
	return len(info) > timeout && info[timeout] != 0
}

// hidesEnd reports whether target CT chooses what conntrack announces of a connection, or of
// those that it expects, without the connection's end.
func hidesEnd(info []byte) bool {
	const end, events, expected = 1 << 2, 4, 8 // IPCT_DESTROY
	return len(info) >= 12 && native32(info, events)&end == 0 && native32(info, events)|native32(info, expected) != 0
}
