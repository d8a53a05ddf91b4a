package rules

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// nftExpr is one expression of an nftables rule, as netlink carries it.
type nftExpr struct {
	name string
	attrs
	raw []byte
}

// expressions parses a list of expressions.
func expressions(list []byte) (all []nftExpr) {
	for _, data := range nlmsg.Attributes(list) {
		all = append(all, expression(data))
	}
	return all
}

// expression parses one expression; without data it returns one without a
// name.
func expression(data []byte) nftExpr {
	a := parseAttrs(data)
	return nftExpr{a.text(unix.NFTA_EXPR_NAME), a.nested(unix.NFTA_EXPR_DATA), data}
}

// compiler compiles a rule of nftables, so that packets can be followed.
type compiler struct {
	*table
	rule *rule
	// comments are those of the rule and of its chain.
	comments []string
	// family is that of the packets that the rule matches, as remote as it says
	// so.
	family family
	// tagged means that they have a VLAN tag, if it says so.
	tagged bool
	// loaded is what the registers hold, by their first 4 bytes.
	loaded [16]source
}

// source is where the content of a register comes from.
type source struct {
	text   string
	format func([]byte) string // of values that it is compared with
}

// compile compiles a rule of its expressions. comment is the rule's.
func (t *table) compile(r *rule, expressions iter.Seq[nftExpr], comment string) {
	r.code = &code{verdicts: []verdict{{}}}
	k := compiler{table: t, rule: r, comments: []string{r.chain.comment, comment}}
	if t.key.family == unix.NFPROTO_IPV6 {
		k.family = ipv6
	}
	for e := range expressions {
		k.add(e)
	}
}

// set returns a set of the table. A rule that is gone looks into it as it was.
func (k *compiler) set(name string) *set {
	if k.rule.gone {
		return k.tx.before(k.table, name)
	}
	return k.table.set(name)
}

func (k *compiler) step(s step) { k.rule.steps = append(k.rule.steps, s) }

// silent are expressions that do not change packets, or only in ways that are
// seen at the end of the regular path.
var silent = map[string]step{
	"notrack": untracking("notrack"), "masq": translating("masquerade"), "nat": translating("nat"), "redir": translating("redirect"),
}

// add compiles one expression.
func (k *compiler) add(e nftExpr) {
	switch e.name {
	case "payload":
		k.payload(e)
	case "meta":
		k.meta(e)
	case "ct":
		k.ct(e)
	case "cmp":
		k.cmp(e)
	case "range":
		k.inRange(e)
	case "bitwise":
		k.bitwise(e)
	case "byteorder":
		k.byteorder(e)
	case "lookup":
		k.lookup(e)
	case "immediate":
		k.immediate(e)
	case "objref":
		k.objref(e)
	case "dynset":
		k.dynset(e)
	case "fib", "rt", "xfrm":
		if e.name == "rt" {
			k.lacking(e.name)
			k.learnt(e)
		}
		const dreg, longest = 1, 16 // of all three
		k.load(e, dreg, longest, source{text: e.name}, unknown)
	case "hash":
		k.hash(e)
	case "numgen":
		k.numgen(e)
	case "exthdr":
		k.exthdr(e)
	case "reject":
		k.rule.verdicts, k.rule.ending = []verdict{{kind: rejects}}, "reject"
	case "counter":
		k.counter("counter")
	case "match":
		if e.text(unix.NFTA_MATCH_NAME) == "comment" {
			k.comments = append(k.comments, cString(e.get(unix.NFTA_MATCH_INFO)))
		}
		if name := e.text(unix.NFTA_MATCH_NAME); slices.Contains(xtLacking, name) {
			k.lacking(name)
		}
		k.step(k.exact.match(e.text(unix.NFTA_MATCH_NAME), int(e.number(unix.NFTA_MATCH_REV)), bytes.Clone(e.get(unix.NFTA_MATCH_INFO))))
	case "target":
		k.target(e)
	default:
		if s, ok := silent[e.name]; ok {
			k.step(s)
			return
		}
		text := e.name
		if name := properNames[text]; name != "" {
			text = name
		}
		k.step(needing(text, ""))
	}
}

// constant is what a register holds that a rule loads a value into.
const constant = "constant"

// flowAdd gives connections to a flowtable.
const flowAdd = "flow add"

// properNames are nft's names of some expressions.
var properNames = map[string]string{"connlimit": "ct count", "flow_offload": flowAdd}

// counter compiles a counter, named or not.
func (k *compiler) counter(text string, named ...string) {
	if name, ok := k.exact.has(append(named, k.comments...)...); ok {
		k.step(counting(text, name))
	}
}

// register returns the offset of a register in the machine's, in bytes, and
// what it holds. ok is false if no such register exists.
func (k *compiler) register(number uint32, length int) (at int, holds *source, ok bool) {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		at = int(number-unix.NFT_REG_1) * 16
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		at = int(number-unix.NFT_REG32_00) * 4
	default:
		return 0, nil, false
	}
	if length < 0 || at+length > len(machine{}.registers) {
		return 0, nil, false
	}
	return at, &k.loaded[at/4], true
}

// strange adds a step for an expression that makes no sense here.
func (k *compiler) strange(e nftExpr) { k.step(needing(e.name, "not known to SCON: "+e.name)) }

// load compiles a load of up to length bytes into a register.
func (k *compiler) load(e nftExpr, dreg uint16, length int, src source, load func(*machine, []octet)) {
	at, holds, ok := k.register(e.number(dreg), (length+3)&^3)
	if !ok {
		k.strange(e)
		return
	}
	*holds = src
	to := at + length
	padded := at + (length+3)&^3
	k.step(step{pure: true, check: func(m *machine) truth {
		load(m, m.registers[at:to])
		for i := to; i < padded; i++ {
			m.registers[i] = octet{known: 0xff}
		}
		return yes
	}})
}

// lacking adds a step for what express packets lack that pass the hook: conntrack's entry,
// the route, and that they are for this host. There a rule judges them otherwise than regular ones (nft_ct_get_eval in
// the kernel's net/netfilter/nft_ct.c: INVALID, or no match).
func (k *compiler) lacking(name string) {
	k.step(step{pure: true, check: func(m *machine) truth {
		if m.bare {
			m.lacks = name + ", which express packets lack there"
			return varies
		}
		return yes
	}})
}

// learnt adds a step for the MTU of a route, which other routers tell this host of without an
// announcement, whether it goes by that when it forwards or not.
func (k *compiler) learnt(e nftExpr) {
	const key, mss = 2, 3 // NFTA_RT_KEY, NFT_RT_TCPMSS
	if e.number(key) == mss {
		k.step(silently(step{why: "rt mtu", pure: true, check: func(*machine) truth { return yes }}))
	}
}

// xtLacking are matches of iptables that ask for these.
var xtLacking = []string{"connbytes", "connlabel", "connlimit", "connmark", "conntrack", "helper", "pkttype", "policy", "realm", "state"}

// unknown loads something that is the same for all packets of a connection.
func unknown(_ *machine, to []octet) { clear(to) }

// varying loads something that differs between packets.
func varying(_ *machine, to []octet) { vary(to) }

func vary(octets []octet) {
	for i := range octets {
		octets[i] = octet{varies: 0xff}
	}
}

// use compiles a use of a register that neither checks nor loads anything. If
// its content varies, packets are treated one by one.
func (k *compiler) use(e nftExpr, sreg uint16, length int, text string) {
	at, holds, ok := k.register(e.number(sreg), length)
	if !ok {
		k.strange(e)
		return
	}
	k.step(step{text: text, why: holds.what(), check: func(m *machine) truth {
		if doubt(m.registers[at:at+length]) == varies {
			return varies
		}
		return yes
	}})
}

func (k *compiler) payload(e nftExpr) {
	base, offset := e.number(unix.NFTA_PAYLOAD_BASE), int(e.number(unix.NFTA_PAYLOAD_OFFSET))
	length := int(e.number(unix.NFTA_PAYLOAD_LEN))
	if offset > 0xffff || length > 16*4 {
		k.strange(e)
		return
	}
	if e.has(unix.NFTA_PAYLOAD_SREG) {
		k.writePayload(e, base, offset, length)
		return
	}
	linkHeader := 14 // Ethernet's: IP's is behind it
	if k.tagged {
		linkHeader = 18
	}
	k.load(e, unix.NFTA_PAYLOAD_DREG, length, headerField{base, offset, length}.source(k.family), func(m *machine, to []octet) {
		m.loadPayload(base, offset, linkHeader, to)
	})
}

// loadPayload loads bytes of a packet. Beyond what forms know there is only
// data; the link layer addresses are the same in all packets.
func (f *form) loadPayload(base uint32, offset, linkHeader int, to []octet) {
	const etherType = 12
	var header []octet
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = f.network()
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = f.transport[:]
	case unix.NFT_PAYLOAD_LL_HEADER:
		header = make([]octet, linkHeader)
		// 0x0800, or 0x8100 or 0x88a8 where a bridge has tagged the packet; or 0x86dd.
		header[etherType], header[etherType+1] = octet{known: 0x76}, octet{known: 0x57}
		if f.family == ipv6 {
			header[etherType], header[etherType+1] = octet{value: 0x80, known: 0xf0}, octet{known: 0x02}
		}
		if tag := etherType + 2; tag < linkHeader {
			header[tag] = octet{varies: 0xf0} // priority, before the VLAN
		}
	}
	vary(to)
	if offset < len(header) {
		copy(to, header[offset:])
	}
}

// writePayload compiles a change of packets. A change of the DSCP is seen at
// the end of the regular path.
func (k *compiler) writePayload(e nftExpr, base uint32, offset, length int) {
	const dscpAndECN = 1 // in the IP header; of IPv6, the byte before as well
	at, _, ok := k.register(e.number(unix.NFTA_PAYLOAD_SREG), length)
	text := headerField{base, offset, length}.source(k.family).text + " set"
	if !ok || base != unix.NFT_PAYLOAD_NETWORK_HEADER || offset+length != dscpAndECN+1 {
		k.step(needing(text, ""))
		return
	}
	ecn := at + length - 1
	k.step(step{text: "ip dscp set", why: "ip ecn set", check: func(m *machine) truth {
		if o := m.registers[ecn]; o.varies == m.ecn() && o.value&o.varies == 0 { // ECN stays what it was
			return yes
		}
		return varies
	}})
}

func (k *compiler) cmp(e nftExpr) {
	op := e.number(unix.NFTA_CMP_OP)
	value := bytes.Clone(e.nested(unix.NFTA_CMP_DATA).get(unix.NFTA_DATA_VALUE))
	at, holds, ok := k.register(e.number(unix.NFTA_CMP_SREG), len(value))
	if !ok || len(value) == 0 || op > unix.NFT_CMP_GTE {
		k.strange(e)
		return
	}
	if holds.text == layer3Name && op == unix.NFT_CMP_EQ && value[0] == unix.NFPROTO_IPV6 {
		k.family = ipv6
	}
	if holds.text == namedFields[etherTypeField].text && op == unix.NFT_CMP_EQ && (bytes.Equal(value, []byte{0x81, 0x00}) || bytes.Equal(value, []byte{0x88, 0xa8})) {
		k.tagged = true
	}
	k.asks(at, len(value))
	to := at + len(value)
	s := step{text: holds.text + [...]string{" ", " != ", " < ", " <= ", " > ", " >= "}[op] + holds.show(value), why: holds.what(), pure: true}
	s.check = func(m *machine) truth {
		octets := m.registers[at:to]
		if op <= unix.NFT_CMP_NEQ {
			return equal(octets, value, nil).invert(op == unix.NFT_CMP_NEQ)
		}
		order, ok := compare(octets, value)
		if !ok {
			return doubt(octets)
		}
		switch op {
		case unix.NFT_CMP_LT:
			return truthOf(order < 0)
		case unix.NFT_CMP_LTE:
			return truthOf(order <= 0)
		case unix.NFT_CMP_GT:
			return truthOf(order > 0)
		default:
			return truthOf(order >= 0)
		}
	}
	k.step(s)
}

func (k *compiler) inRange(e nftExpr) {
	low := bytes.Clone(e.nested(unix.NFTA_RANGE_FROM_DATA).get(unix.NFTA_DATA_VALUE))
	high := bytes.Clone(e.nested(unix.NFTA_RANGE_TO_DATA).get(unix.NFTA_DATA_VALUE))
	at, holds, ok := k.register(e.number(unix.NFTA_RANGE_SREG), len(low))
	if !ok || len(low) == 0 || len(low) != len(high) {
		k.strange(e)
		return
	}
	not := e.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ
	text := holds.text + operator(not) + holds.show(low) + "-" + holds.show(high)
	k.asks(at, len(low))
	to := at + len(low)
	k.step(step{text: text, why: holds.what(), pure: true, check: func(m *machine) truth {
		return between(m.registers[at:to], low, high).invert(not)
	}})
}

// bitwise compiles (register & mask) ^ xor. The other operations on registers
// are the same for all packets if their operands are.
func (k *compiler) bitwise(e nftExpr) {
	const sreg2 = 8 // NFTA_BITWISE_SREG2
	length := int(e.number(unix.NFTA_BITWISE_LEN))
	from, holds, ok1 := k.register(e.number(unix.NFTA_BITWISE_SREG), length)
	at, result, ok2 := k.register(e.number(unix.NFTA_BITWISE_DREG), length)
	if !ok1 || !ok2 {
		k.strange(e)
		return
	}
	mask := bytes.Clone(e.nested(unix.NFTA_BITWISE_MASK).get(unix.NFTA_DATA_VALUE))
	xor := bytes.Clone(e.nested(unix.NFTA_BITWISE_XOR).get(unix.NFTA_DATA_VALUE))
	const op = 6 // NFTA_BITWISE_OP
	src := *holds
	if e.number(op) == 0 && len(mask) == length && len(xor) == length {
		src.text += " & " + holds.show(mask)
		*result = src
		k.step(step{pure: true, check: func(m *machine) truth {
			for i := range length {
				o := m.registers[from+i]
				m.registers[at+i] = octet{
					value:  o.value&mask[i] ^ xor[i],
					known:  o.known | ^mask[i],
					varies: o.varies & mask[i],
				}
			}
			return yes
		}})
		return
	}
	second := e.number(sreg2)
	from2, _, ok := k.register(second, length)
	k.mix(at, length, result, src, func(m *machine) bool {
		return doubt(m.registers[from:from+length]) == varies ||
			ok && doubt(m.registers[from2:from2+length]) == varies
	})
}

// mix compiles a value that is not followed further: it varies if its operands
// do.
func (k *compiler) mix(at, length int, result *source, src source, variesIn func(*machine) bool) {
	src.format = hex
	*result = src
	k.step(step{pure: true, check: func(m *machine) truth {
		to := m.registers[at : at+length]
		if variesIn(m) {
			vary(to)
		} else {
			clear(to)
		}
		return yes
	}})
}

// byteorder compiles the swapping of bytes in each unit of a value.
func (k *compiler) byteorder(e nftExpr) {
	length, size := int(e.number(unix.NFTA_BYTEORDER_LEN)), int(e.number(unix.NFTA_BYTEORDER_SIZE))
	from, holds, ok1 := k.register(e.number(unix.NFTA_BYTEORDER_SREG), length)
	at, result, ok2 := k.register(e.number(unix.NFTA_BYTEORDER_DREG), length)
	if !ok1 || !ok2 || size != 2 && size != 4 && size != 8 {
		k.strange(e)
		return
	}
	if length < size && at == from {
		return // the kernel converts whole units
	}
	*result = *holds
	if length%size != 0 { // the rest is not known
		k.mix(at, length, result, *holds, func(m *machine) bool { return doubt(m.registers[from:from+length]) == varies })
		return
	}
	result.format = hex
	k.step(step{pure: true, check: func(m *machine) truth {
		swapped := m.registers
		for i := range length {
			unit := i - i%size
			swapped[at+i] = m.registers[from+unit+swapIndex(i%size, size)]
		}
		m.registers = swapped
		return yes
	}})
}

// swapIndex is the origin of a byte when host order and network order are
// exchanged.
func swapIndex(i, size int) int {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return i
	}
	return size - 1 - i
}

func (k *compiler) immediate(e nftExpr) {
	data := e.get(unix.NFTA_IMMEDIATE_DATA)
	if e.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
		v, text := k.verdict(data)
		k.rule.verdicts, k.rule.ending = []verdict{v}, text
		return
	}
	value := known(parseAttrs(data).get(unix.NFTA_DATA_VALUE)...)
	k.load(e, unix.NFTA_IMMEDIATE_DREG, len(value), source{text: constant, format: hex}, func(_ *machine, to []octet) { copy(to, value) })
}

// operator is how nft writes a comparison, inverted or not.
func operator(not bool) string {
	if not {
		return " != "
	}
	return " "
}

// hash compiles jhash of registers, and the hash of a connection's addresses.
func (k *compiler) hash(e nftExpr) {
	const symmetric = 1
	at, result, ok1 := k.register(e.number(unix.NFTA_HASH_DREG), 4)
	length := int(e.number(unix.NFTA_HASH_LEN))
	from, holds, ok2 := k.register(e.number(unix.NFTA_HASH_SREG), length)
	switch {
	case ok1 && e.number(unix.NFTA_HASH_TYPE) == symmetric:
		k.mix(at, 4, result, source{text: "symhash"}, func(*machine) bool { return false })
	case ok1 && ok2:
		k.mix(at, 4, result, source{text: "jhash " + holds.text}, func(m *machine) bool {
			return doubt(m.registers[from:from+length]) == varies
		})
	default:
		k.strange(e)
	}
}

func (k *compiler) numgen(e nftExpr) {
	const numgenType, random = 3, 1
	if e.number(numgenType) != random {
		k.step(needing("numgen inc", "")) // counts packets
		return
	}
	const dreg, length = 1, 4
	k.load(e, dreg, length, source{text: "numgen random"}, varying)
}

// exthdr compiles loads and changes of TCP options. Express packets have no IP
// options and no extension headers, and looks for options of other protocols
// find none.
func (k *compiler) exthdr(e nftExpr) {
	const exthdrSreg, ofTCP = 8, 1
	optional := e.number(unix.NFTA_EXTHDR_FLAGS)&unix.NFT_EXTHDR_F_PRESENT != 0
	isTCP := e.number(unix.NFTA_EXTHDR_OP) == ofTCP
	hasNone := func(m *machine) bool { return !isTCP || m.proto != 0 && m.proto != unix.IPPROTO_TCP }
	if !optional {
		k.step(step{pure: true, check: func(m *machine) truth { return truthOf(!hasNone(m)) }})
	}
	if e.has(exthdrSreg) || !e.has(unix.NFTA_EXTHDR_DREG) {
		k.step(needing("tcp option set", ""))
		return
	}
	k.load(e, unix.NFTA_EXTHDR_DREG, int(e.number(unix.NFTA_EXTHDR_LEN)), source{text: "option"}, func(m *machine, to []octet) {
		if hasNone(m) {
			setKnown(to, make([]byte, len(to)))
			return
		}
		vary(to)
	})
}

func (k *compiler) target(e nftExpr) {
	name, info := e.text(unix.NFTA_TARGET_NAME), e.get(unix.NFTA_TARGET_INFO)
	k.timesOut = k.timesOut || name == "CT" && timesOut(info)
	s, v, ending := xtTarget(name, int(e.number(unix.NFTA_TARGET_REV)), info)
	k.step(s)
	if v.kind != proceed {
		k.rule.verdicts, k.rule.ending = []verdict{v}, ending
	}
}

// keyText describes a key.
func (k *compiler) keyText(at, length int) string {
	var names []string
	for i := at / 4; i < min((at+length+3)/4, len(k.loaded)); i++ {
		if text := k.loaded[i].text; text != "" {
			names = append(names, text)
		}
	}
	return strings.Join(names, " . ")
}

// what names a source without the operations on it.
func (s *source) what() string {
	name, _, _ := strings.Cut(s.text, " & ")
	return name
}

func (s *source) show(value []byte) string {
	if s.format == nil {
		return hex(value)
	}
	return s.format(value)
}

func hex(value []byte) string { return fmt.Sprintf("0x%x", value) }
