package rules

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// The extensions of iptables as the kernel stores them
// (linux/netfilter/xt_*.h). They are the same in iptables-legacy and, as the
// expressions `match` and `target`, in iptables-nft.

// constantMatches have the same result for all packets of a connection, which
// is not followed here.
var constantMatches = []string{
	"addrtype", "cgroup", "cluster", "devgroup", "dscp", "eui64", "helper", "mac", "owner", "policy", "realm", "rpfilter",
}

// varyingMatches check what differs between packets and have no side effects:
// if a later condition excludes a packet, they do not matter.
var varyingMatches = []string{
	"connbytes", "cpu", "ecn", "hl", "length", "string", "tcpmss", "time", "ttl", "u32",
}

// Matches on protocols that do not go express, and on extension headers.
var foreignMatches = []string{"ah", "dccp", "dst", "esp", "frag", "hbh", "icmp", "icmp6", "ipcomp", "mh", "rt", "sctp"}

// xtMatch compiles a match. Unknown matches judge single packets.
func xtMatch(name string, revision int, info []byte) step {
	text := "-m " + name
	switch {
	case name == "comment":
		return always("")
	case slices.Contains(constantMatches, name):
		return unsure(text)
	case name == "connlabel" && !setsLabel(info):
		return silently(unsure(text))
	case name == "mark" || name == "connmark":
		if s, ok := xtMark(text, name == "connmark", revision, info); ok {
			return s
		}
	case slices.Contains(varyingMatches, name):
		return judging(text, name)
	case slices.Contains(foreignMatches, name):
		return step{text: text, check: func(*machine) truth { return no }}
	}
	if read := xtMatches[name]; read != nil {
		if s, ok := read(revision, info); ok {
			return s
		}
	}
	return needing(text, name)
}

// xtMatches compile the matches that are followed. They report false if the
// revision is unknown or info is too short.
var xtMatches = map[string]func(revision int, info []byte) (step, bool){
	"bpf":       xtBPF,
	"tcp":       xtTCP,
	"udp":       xtUDP,
	"multiport": xtMultiport,
	"iprange":   xtIPRange,
	"physdev":   xtPhysdev,
	"pkttype":   xtPacketType,
	"tos":       xtTOS,
	"statistic": xtStatistic,
	"set":       xtSet,
	"state":     xtState,
	"conntrack": xtConntrack,
}

func native16(b []byte, at int) uint16 { return binary.NativeEndian.Uint16(b[at:]) }
func native32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }

// xtPorts checks the port ranges at the beginning of xt_tcp and xt_udp. The
// lowest bits of inverted belong to the two of them.
func xtPorts(m *machine, info []byte, inverted byte) truth {
	source := portBetween(m.transport[0:2], native16(info, 0), native16(info, 2)).invert(inverted&1 != 0)
	destination := portBetween(m.transport[2:4], native16(info, 4), native16(info, 6)).invert(inverted&2 != 0)
	return source.and(destination)
}

func portsText(info []byte, inverted byte) (text string) {
	for i, option := range []string{"--sport", "--dport"} {
		low, high := native16(info, 4*i), native16(info, 4*i+2)
		if low == 0 && high == 0xffff {
			continue
		}
		text += " "
		if inverted&(1<<i) != 0 {
			text += "! "
		}
		text += fmt.Sprintf("%s %d", option, low)
		if high != low {
			text += fmt.Sprintf(":%d", high)
		}
	}
	return text
}

func xtTCP(_ int, info []byte) (step, bool) {
	if len(info) < 12 {
		return step{}, false
	}
	option, mask, flags, inverted := info[8], info[9], info[10], info[11]
	const invertFlags = 4
	text := "-p tcp" + portsText(info, inverted)
	if mask != 0 {
		text += fmt.Sprintf(" --tcp-flags 0x%x 0x%x", mask, flags)
	}
	return step{text: text, why: "tcp flags or options", check: func(m *machine) truth {
		t := xtPorts(m, info, inverted)
		if mask != 0 || inverted&invertFlags != 0 {
			t = t.and(equal(m.transport[13:14], []byte{flags}, []byte{mask}).invert(inverted&invertFlags != 0))
		}
		if option != 0 {
			t = t.and(varies)
		}
		return t
	}}, true
}

func xtUDP(_ int, info []byte) (step, bool) {
	if len(info) < 9 {
		return step{}, false
	}
	inverted := info[8]
	return step{text: "-p udp" + portsText(info, inverted), check: func(m *machine) truth {
		return xtPorts(m, info, inverted)
	}}, true
}

func xtMultiport(revision int, info []byte) (step, bool) {
	const maxPorts, sources, destinations, either = 15, 0, 1, 2
	if revision != 1 || len(info) < 48 || info[0] > either || info[1] > maxPorts {
		return step{}, false
	}
	which, count, inverted := info[0], int(info[1]), info[47] != 0
	text := "-m multiport " + [...]string{"--sports", "--dports", "--ports"}[which]
	type ports struct{ low, high uint16 }
	var all []ports
	for i := 0; i < count; i++ {
		p := native16(info, 2+2*i)
		r := ports{p, p}
		if info[32+i] != 0 && i+1 < count { // the beginning of a range
			i++
			r.high = native16(info, 2+2*i)
		}
		all = append(all, r)
		text += fmt.Sprintf(" %d:%d", r.low, r.high)
	}
	return step{text: text, check: func(m *machine) truth {
		t := no
		for _, r := range all {
			if which != destinations {
				t = t.or(portBetween(m.transport[0:2], r.low, r.high))
			}
			if which != sources {
				t = t.or(portBetween(m.transport[2:4], r.low, r.high))
			}
		}
		return t.invert(inverted)
	}}, true
}

func xtIPRange(revision int, info []byte) (step, bool) {
	const source, destination, inverted = 1 << 0, 1 << 1, 4 // shift of the bits that invert
	if revision != 1 || len(info) < 65 {
		return step{}, false
	}
	flags := info[64]
	text := "-m iprange"
	for i, option := range []string{"--src-range", "--dst-range"} {
		if flags&(1<<i) != 0 {
			text += fmt.Sprintf(" %s %s-%s", option, rangeEnd(info[32*i:]), rangeEnd(info[32*i+16:]))
		}
	}
	return step{text: text, check: func(m *machine) truth {
		t := yes
		if flags&source != 0 {
			n := len(m.source())
			t = t.and(between(m.source(), info[0:n], info[16:16+n]).invert(flags&(source<<inverted) != 0))
		}
		if flags&destination != 0 {
			n := len(m.destination())
			t = t.and(between(m.destination(), info[32:32+n], info[48:48+n]).invert(flags&(destination<<inverted) != 0))
		}
		return t
	}}, true
}

// rangeEnd formats an address of either family. An IPv4 address has zeros
// after it.
func rangeEnd(info []byte) string {
	if [12]byte(info[4:16]) == [12]byte{} {
		return address(info[:4])
	}
	return address(info[:16])
}

func xtPacketType(_ int, info []byte) (step, bool) {
	if len(info) < 8 {
		return step{}, false
	}
	typ, inverted := native32(info, 0), native32(info, 4) != 0
	return step{text: "-m pkttype", check: func(m *machine) truth {
		if !m.layer3 {
			return maybe
		}
		return truthOf(typ == unix.PACKET_HOST).invert(inverted)
	}}, true
}

// xtPhysdev tells ports of one bridge apart if it names one. At the end of the
// regular path they are not told apart (a container can send under another's
// addresses), so such a rule judges single packets. Whether a packet passes a
// bridge at all is the same for all of a connection's packets.
func xtPhysdev(_ int, info []byte) (step, bool) {
	const bitmask, names = 65, 1 | 2 // XT_PHYSDEV_OP_IN, XT_PHYSDEV_OP_OUT
	if len(info) <= bitmask {
		return step{}, false
	}
	if info[bitmask]&names != 0 {
		return judging("-m physdev", "physdev"), true
	}
	return unsure("-m physdev"), true
}

// xtTOS depends on ECN if its mask does.
func xtTOS(revision int, info []byte) (step, bool) {
	if revision != 1 || len(info) < 3 {
		return step{}, false
	}
	mask, value, inverted := info[0], info[1], info[2] != 0
	return step{text: "-m tos", check: func(m *machine) truth {
		return equal([]octet{m.tos()}, []byte{value}, []byte{mask}).invert(inverted)
	}}, true
}

// xtStatistic judges by chance, or counts packets.
func xtStatistic(_ int, info []byte) (step, bool) {
	const random = 0
	if len(info) < 2 || native16(info, 0) != random {
		return step{}, false
	}
	return judging("-m statistic --mode random", "statistic"), true
}

// xtBPF judges by a program. One of classic BPF in the rule itself only reads the packet;
// another one may count packets in maps.
func xtBPF(revision int, info []byte) (step, bool) {
	const bytecode = 0 // XT_BPF_MODE_BYTECODE
	if revision > 1 || revision == 1 && (len(info) < 2 || native16(info, 0) != bytecode) {
		return step{}, false
	}
	return judging("-m bpf", "bpf"), true
}

// setsLabel reports whether a match (struct xt_connlabel_mtinfo) gives connections a label, which
// the next packet may meet.
func setsLabel(info []byte) bool {
	const options, set = 2, 1 << 1 // XT_CONNLABEL_OP_SET
	return len(info) < 4 || native16(info, options)&set != 0
}

// xtSet looks packets up in a set of ipset, which changes without an announcement. If it
// compares the counters of elements, it judges single packets.
func xtSet(revision int, info []byte) (step, bool) {
	compares, _ := xtSetCounters(revision, info)
	return silently(unsure("-m set")), revision <= 4 && !compares
}

// xtSetCounters reports whether a look-up compares the counters of elements, and whether it
// counts.
func xtSetCounters(revision int, info []byte) (compares, counts bool) {
	const size, flags, skip = 44, 40, 1 << 3 // IPSET_FLAG_SKIP_COUNTER_UPDATE
	packets, bytes := 8, 24                  // where their operators are
	switch {
	case revision < 3:
		return false, true
	case len(info) < size:
		return true, true
	case revision > 3:
		packets, bytes = 16, 32
	}
	return info[packets] != 0 || info[bytes] != 0, native32(info, flags)&skip == 0
}
