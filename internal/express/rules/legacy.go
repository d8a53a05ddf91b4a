package rules

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"golang.org/x/sys/unix"
)

// The format of iptables-legacy (linux/netfilter_ipv4/ip_tables.h,
// ip6_tables.h for IPv6). A table is one block of memory with consecutive
// rules. Each rule has a struct ipt_ip, matches, and a target. Chains begin at
// known offsets, or after a rule with target ERROR, which holds their name.
const (
	legacyNameSize      = 32
	legacyInfoSize      = legacyNameSize + 4 + 5*4 + 5*4 + 4 + 4
	legacyEntriesHeader = 40 // struct ipt_get_entries up to its entries

	extensionHeader = 32 // struct xt_entry_match and xt_entry_target
	extensionName   = 29
)

// legacyForm is what differs between the families.
type legacyForm struct {
	family family
	name   string
	// Of struct ipt_entry and ip6t_entry: the size, and the offsets of
	// target_offset, next_offset and the counters.
	size, target, next, counters int
	// Of struct ipt_ip and ip6t_ip6.
	address                int // length of one; two, and their masks
	inDevice, outDevice    int
	inMask, outMask        int
	proto, flags, inverted int
	flagFragment, flagGoto byte
	flagUnknown            byte // what is not followed
}

var legacyForms = map[family]*legacyForm{
	ipv4: {
		family: ipv4, name: "iptables-legacy",
		size: 112, target: 88, next: 90, counters: 96,
		address: 4, inDevice: 16, outDevice: 32, inMask: 48, outMask: 64,
		proto: 80, flags: 82, inverted: 83, flagFragment: 1, flagGoto: 2,
	},
	ipv6: {
		family: ipv6, name: "ip6tables-legacy",
		size: 168, target: 140, next: 142, counters: 152,
		address: 16, inDevice: 64, outDevice: 80, inMask: 96, outMask: 112,
		proto: 128, flags: 131, inverted: 132, flagGoto: 4, flagUnknown: 2,
	},
}

var errMalformed = errors.New("the kernel's answer has an unknown format")

// legacyLayout is where a table's built-in chains begin, by hook number.
type legacyLayout struct {
	hooks   uint32 // bits: those that the table has
	entries [5]uint32
	size    uint32
}

func parseLegacyInfo(b []byte) (l legacyLayout, err error) {
	if len(b) != legacyInfoSize {
		return l, errMalformed
	}
	l.hooks = native32(b, legacyNameSize)
	for i := range l.entries {
		l.entries[i] = native32(b, legacyNameSize+4+4*i)
	}
	l.size = native32(b, legacyInfoSize-4)
	const most = 512 << 20 // XT_MAX_TABLE_SIZE
	if l.size > most {
		return l, errMalformed
	}
	return l, nil
}

// legacyHooks are the hooks by number.
var legacyHooks = map[int]hook{
	unix.NF_INET_PRE_ROUTING: prerouting, unix.NF_INET_LOCAL_IN: input, unix.NF_INET_FORWARD: forward, unix.NF_INET_LOCAL_OUT: output, unix.NF_INET_POST_ROUTING: postrouting,
}

// legacyPriorities are the tables' priorities (enum nf_ip_hook_priorities).
var legacyPriorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}

// legacyBase returns a base chain of a table.
func legacyBase(f family, table string, c *chain, h hook) *base {
	b := &base{chain: c, hook: h, families: []family{f}, priority: legacyPriorities[table]}
	if table == "nat" {
		b.nat, b.priority = true, prioritySNAT
		if h == prerouting {
			b.priority = priorityDNAT
		}
	}
	return b
}

// legacyEntry is one rule as stored in the table.
type legacyEntry struct {
	at      uint32
	ip      []byte
	matches []extension
	target  extension
}

// extension is a match or a target.
type extension struct {
	name     string
	revision int
	info     []byte
}

// parse parses the rules of a table.
func (t legacyTable) parse(exact *exactCounters) ([]*base, error) {
	p, bases, err := t.begin(exact)
	if err != nil {
		return nil, err
	}
	err = p.each(func(c *chain, e legacyEntry, next uint32) error {
		r, err := p.rule(c, e, next)
		if err == nil {
			r.handle = uint64(len(c.rules) + 1)
			c.rules = append(c.rules, r)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return bases, nil
}

// begin finds the entries and the chains of a table, which have no rules yet.
func (t legacyTable) begin(exact *exactCounters) (p legacyParser, bases []*base, err error) {
	p = legacyParser{exact: exact, legacyForm: t.form, table: t.form.name + " " + t.name, chains: make(map[uint32]*chain)}
	if err := p.split(t.entries); err != nil {
		return p, nil, err
	}
	for number, begin := range t.layout.entries {
		if t.layout.hooks&(1<<number) == 0 {
			continue
		}
		name := [...]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}[number]
		c := p.begin(begin, name)
		bases = append(bases, legacyBase(t.form.family, t.name, c, legacyHooks[number]))
	}
	return p, bases, nil
}

// digest is a hash of tables without their counters.
func digest(tables []legacyTable) uint64 {
	h := fnv.New64a()
	for _, t := range tables {
		h.Write([]byte(t.form.name + t.name))
		for b := t.entries; len(b) >= t.form.size; {
			next := int(native16(b, t.form.next))
			if next < t.form.size || next > len(b) {
				break
			}
			h.Write(b[:t.form.counters])
			h.Write(b[t.form.size:next])
			b = b[next:]
		}
	}
	return h.Sum64()
}

type legacyParser struct {
	*legacyForm
	exact   *exactCounters
	table   string
	entries []legacyEntry
	chains  map[uint32]*chain // by where they begin
}

func (p *legacyParser) begin(at uint32, name string) *chain {
	c := &chain{table: p.table, name: name}
	p.chains[at] = c
	return c
}

// split finds the entries, and where user-defined chains begin.
func (p *legacyParser) split(b []byte) error {
	for at := 0; at < len(b); {
		e, size, err := p.parseEntry(b[at:])
		if err != nil {
			return fmt.Errorf("entry at %d: %w", at, err)
		}
		e.at = uint32(at)
		at += size
		p.entries = append(p.entries, e)
		if e.target.name == "ERROR" && at < len(b) {
			p.begin(uint32(at), cString(e.target.info))
		}
	}
	return nil
}

func (l *legacyForm) parseEntry(b []byte) (e legacyEntry, size int, err error) {
	if len(b) < l.size {
		return e, 0, errMalformed
	}
	target, next := int(native16(b, l.target)), int(native16(b, l.next))
	if target < l.size || next < target+extensionHeader || next > len(b) {
		return e, 0, errMalformed
	}
	e.ip = b[:l.size]
	for at := l.size; at < target; {
		m, n, err := parseExtension(b[at:target])
		if err != nil {
			return e, 0, err
		}
		e.matches = append(e.matches, m)
		at += n
	}
	e.target, _, err = parseExtension(b[target:next])
	return e, next, err
}

func parseExtension(b []byte) (x extension, size int, err error) {
	if len(b) < extensionHeader {
		return x, 0, errMalformed
	}
	size = int(native16(b, 0))
	if size < extensionHeader || size > len(b) {
		return x, 0, errMalformed
	}
	return extension{cString(b[2 : 2+extensionName]), int(b[extensionHeader-1]), b[extensionHeader:size]}, size, nil
}

// each calls fn for each rule of the chains, until one fails; next is the offset of the
// one after it. A chain ends where another begins.
func (p *legacyParser) each(fn func(c *chain, e legacyEntry, next uint32) error) error {
	var c *chain
	for i, e := range p.entries {
		if begun := p.chains[e.at]; begun != nil {
			c = begun
		}
		if e.target.name == "ERROR" || c == nil {
			continue
		}
		next := uint32(0)
		if i+1 < len(p.entries) {
			next = p.entries[i+1].at
		}
		if err := fn(c, e, next); err != nil {
			return err
		}
	}
	return nil
}

// rule compiles one rule; next is the offset of the one after it.
func (p *legacyParser) rule(c *chain, e legacyEntry, next uint32) (*rule, error) {
	r := &rule{chain: c, code: &code{verdicts: []verdict{{}}}}
	ip := p.ipMatch(e.ip)
	ip.pure = true
	r.steps = append(r.steps, ip)
	var comments []string
	for _, m := range e.matches {
		if m.name == "comment" {
			comments = append(comments, cString(m.info))
		}
		r.steps = append(r.steps, p.exact.match(m.name, m.revision, m.info))
	}
	if name, ok := p.exact.has(comments...); ok {
		r.steps = append(r.steps, counting("", name))
	}
	if e.target.name != "" {
		s, v, ending := xtTarget(e.target.name, e.target.revision, e.target.info)
		r.steps, r.verdicts, r.ending = append(r.steps, s), []verdict{v}, ending
		return r, nil
	}
	if len(e.target.info) < 4 {
		return nil, errMalformed
	}
	v, ending, err := p.verdict(int32(native32(e.target.info, 0)), e.ip[p.flags]&p.flagGoto != 0, next)
	r.verdicts, r.ending = []verdict{v}, ending
	return r, err
}

// verdict returns the verdict of a standard target: -1 - NF_DROP, NF_ACCEPT,
// ..., or the offset where the packet continues.
func (p *legacyParser) verdict(code int32, isGoto bool, next uint32) (verdict, string, error) {
	const drop, accept, queue, toCaller = -1, -2, -4, -5
	switch {
	case code == drop:
		return verdict{kind: drops}, "-j DROP", nil
	case code == accept:
		return verdict{kind: accepts}, "-j ACCEPT", nil
	case code == toCaller:
		return verdict{kind: back}, "-j RETURN", nil
	case code < 0:
		c := unknownChain(p.table, fmt.Sprintf("verdict %d", code))
		return verdict{kind: jump, target: c}, "-j " + c.name, nil
	case uint32(code) == next: // a rule without a target
		return verdict{}, "", nil
	}
	target := p.chains[uint32(code)]
	if target == nil {
		return verdict{}, "", errMalformed
	}
	if isGoto {
		return verdict{kind: goTo, target: target}, "-g " + target.name, nil
	}
	return verdict{kind: jump, target: target}, "-j " + target.name, nil
}

// The inverted conditions of a rule, in struct ipt_ip and ip6t_ip6.
const (
	invertIn, invertOut             = 1, 2
	invertSource, invertDestination = 8, 16
	invertFragment, invertProto     = 32, 64
)

// source, destination and their masks.
func (l *legacyForm) addresses(ip []byte) (src, dst, srcMask, dstMask []byte) {
	n := l.address
	return ip[:n], ip[n : 2*n], ip[2*n : 3*n], ip[3*n : 4*n]
}

// ipMatch checks the addresses, protocol and devices of a rule of iptables-legacy.
func (l *legacyForm) ipMatch(ip []byte) step {
	inverted := func(bit byte) bool { return ip[l.inverted]&bit != 0 }
	device := func(m *machine, d *Device, name, mask int) truth {
		if bytes.Count(ip[mask:mask+unix.IFNAMSIZ], []byte{0}) == unix.IFNAMSIZ {
			return yes
		}
		var octets [unix.IFNAMSIZ]octet
		m.loadName(d, octets[:])
		return equal(octets[:], ip[name:name+unix.IFNAMSIZ], ip[mask:mask+unix.IFNAMSIZ])
	}
	fragment, unsure := ip[l.flags]&l.flagFragment != 0, ip[l.flags]&l.flagUnknown != 0
	proto := native16(ip, l.proto)
	src, dst, srcMask, dstMask := l.addresses(ip)
	return step{text: l.ipText(ip), check: func(m *machine) truth {
		t := equal(m.source(), src, srcMask).invert(inverted(invertSource))
		t = t.and(equal(m.destination(), dst, dstMask).invert(inverted(invertDestination)))
		if proto != 0 && t != no {
			t = t.and(equal(m.protocol(), []byte{byte(proto)}, nil).invert(inverted(invertProto)))
		}
		if fragment {
			t = t.and(no.invert(inverted(invertFragment)))
		}
		if unsure {
			t = t.and(maybe)
		}
		if t == no {
			return no
		}
		t = t.and(device(m, m.iif, l.inDevice, l.inMask).invert(inverted(invertIn)))
		return t.and(device(m, m.oif, l.outDevice, l.outMask).invert(inverted(invertOut)))
	}}
}

// ipText formats the addresses, protocol and devices of a rule as iptables does.
func (l *legacyForm) ipText(ip []byte) string {
	var words []string
	add := func(inverted byte, option, value string) {
		if ip[l.inverted]&inverted != 0 {
			words = append(words, "!")
		}
		words = append(words, option, value)
	}
	addr := func(inverted byte, option string, a, m []byte) {
		if !bytes.Equal(m, make([]byte, l.address)) {
			add(inverted, option, address(a)+"/"+address(m))
		}
	}
	device := func(inverted byte, option string, at, mask int) {
		if ip[mask] != 0 {
			name, _, _ := bytes.Cut(ip[at:at+unix.IFNAMSIZ], []byte{0})
			value := string(name)
			if ip[mask+min(len(name), unix.IFNAMSIZ-1)] == 0 {
				value += "+"
			}
			add(inverted, option, value)
		}
	}
	src, dst, srcMask, dstMask := l.addresses(ip)
	addr(invertSource, "-s", src, srcMask)
	addr(invertDestination, "-d", dst, dstMask)
	device(invertIn, "-i", l.inDevice, l.inMask)
	device(invertOut, "-o", l.outDevice, l.outMask)
	if proto := native16(ip, l.proto); proto != 0 {
		add(invertProto, "-p", protocol([]byte{byte(proto)}))
	}
	return strings.Join(words, " ")
}
