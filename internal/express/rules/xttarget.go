package rules

import (
	"encoding/binary"
	"slices"
)

// silentTargets do not change packets, or only in ways that are seen at the
// end of the regular path: marks, priority, DSCP.
var silentTargets = []string{
	"CLASSIFY", "DSCP", "HMARK",
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
	case name == "MARK" && !invertsMark(revision, info):
		return always(text), verdict{}, ""
	case name == "NOTRACK":
		return untracking(text), verdict{}, ""
	case name == "CONNMARK" && !flipsMark(revision, info):
		return marking(always(text)), verdict{}, "" // it may restore a mark
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

// invertsMark reports whether target MARK (struct xt_mark_tginfo2) inverts bits: a rule that
// saves the mark gives the connection a different one with each packet then.
func invertsMark(revision int, info []byte) bool {
	return revision != 2 || len(info) < 8 || native32(info, 0)&^native32(info, 4) != 0
}

// flipsMark reports whether target CONNMARK (struct xt_connmark_tginfo1, 2)
// changes a connection's mark with each packet, by inverting or moving bits.
func flipsMark(revision int, info []byte) bool {
	const set, save = 0, 1
	if revision < 1 || revision > 2 || len(info) < 15 {
		return true
	}
	value, cleared, taken, mode := native32(info, 0), native32(info, 4), native32(info, 8), info[12]
	if revision == 2 {
		bits := info[13]
		if mode = info[14]; bits != 0 {
			return true
		}
	}
	return mode == set && value&^cleared != 0 || mode == save && taken&^cleared != 0
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

// hidesEnd reports whether target CT chooses what conntrack announces of a connection, or of
// those that it expects, without the connection's end.
func hidesEnd(info []byte) bool {
	const end, events, expected = 1 << 2, 4, 8 // IPCT_DESTROY
	return len(info) >= 12 && native32(info, events)&end == 0 && native32(info, events)|native32(info, expected) != 0
}
