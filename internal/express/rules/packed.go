package rules

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// followed is what Live keeps of a rule: enough to compile it when it is needed.
type followed struct {
	*names        // nil if the rule is not followed
	sum    uint64 // of equal rules the same; of others with luck
	packed []byte
	// judges means that the rule may judge single packets, leaves that packets may
	// leave the chain by it, never that no packet of an established connection that
	// conntrack sees matches, ends that each does and leaves the chain.
	judges, leaves, never, ends bool
	untracking                  bool // keeps packets from conntrack
	silent                      bool // as isSilent has it
	tracks                      bool // has conntrack track packets
	uses                        markUse

	changed bool // by the transaction whose Change is looked at
	added   bool // and was not there before
	gone    bool // and not in the ruleset any more
	active  bool // in the chain's rules: it stays compiled
}

// names are what a rule refers to by name.
type names struct {
	target  string   // chain of its verdict, "" for none
	sets    []string // that it looks into, or updates
	comment string
}

var noNames = new(names)

// follow stores a rule.
func (t *table) follow(r *rule, expressions iter.Seq[nftExpr], comment string) {
	if len(t.exact.named) == 0 {
		comment = "" // nobody asks for it
	}
	r.names = &names{comment: comment}
	r.sum = t.digest(expressions, r.names)
	if r.target == "" && len(r.sets) == 0 && comment == "" {
		r.names = noNames
	}
	if like := t.tx.like(r.sum); like != nil && len(r.sets) == 0 {
		r.packed, r.judges, r.leaves, r.never, r.ends, r.untracking, r.silent = like.packed, like.judges, like.leaves, like.never, like.ends, like.untracking, like.silent
		r.tracks, r.uses = like.tracks, like.uses
		return
	}
	for e := range expressions {
		r.packed = t.words.pack(r.packed, e.plain())
	}
	r.tracks = haveTracked(expressions)
	r.packed = slices.Clip(r.packed)
	t.classify(r)
	if len(t.warm) > mostWarm {
		t.cool()
	}
}

// haveTracked reports whether a rule with these expressions has conntrack track packets.
func haveTracked(expressions iter.Seq[nftExpr]) bool {
	for e := range expressions {
		if e.tracks() {
			return true
		}
	}
	return false
}

// hideEnds reports whether a rule with these expressions chooses what conntrack announces of
// a connection, without its end.
func hideEnds(expressions iter.Seq[nftExpr]) bool {
	for e := range expressions {
		switch e.name {
		case "ct":
			if e.number(unix.NFTA_CT_KEY) == unix.NFT_CT_EVENTMASK && e.has(unix.NFTA_CT_SREG) {
				return true
			}
		case "target":
			if e.text(unix.NFTA_TARGET_NAME) == "CT" && hidesEnd(e.get(unix.NFTA_TARGET_INFO)) {
				return true
			}
		}
	}
	return false
}

// tracks reports whether conntrack tracks packets as long as a rule has the expression
// (calls of nf_ct_netns_get in the kernel's net/netfilter).
func (e *nftExpr) tracks() bool {
	switch e.name {
	case "ct", "nat", "masq", "redir", "connlimit", "flow_offload", "synproxy":
		return true
	case "dynset": // what new elements have
		return slices.ContainsFunc(e.ofElements(), func(x nftExpr) bool { return x.tracks() })
	case "match":
		return slices.Contains(trackingMatches, e.text(unix.NFTA_MATCH_NAME))
	case "target":
		name, info := e.text(unix.NFTA_TARGET_NAME), e.get(unix.NFTA_TARGET_INFO)
		const notrack = 1 // XT_CT_NOTRACK, with which the target needs nothing
		return slices.Contains(trackingTargets, name) && (name != "CT" || len(info) >= 2 && binary.NativeEndian.Uint16(info)&notrack == 0)
	}
	return false
}

var (
	trackingMatches = []string{"connbytes", "connlabel", "connlimit", "connmark", "conntrack", "helper", "state"}
	trackingTargets = []string{"CONNMARK", "CONNSECMARK", "CT", "DNAT", "MASQUERADE", "NETMAP", "REDIRECT", "SNAT", "SYNPROXY"}
)

// mostWarm bounds the rules that stay compiled while many are stored.
const mostWarm = 256

// ready compiles a rule that is not.
func (r *rule) ready() {
	if r.code == nil {
		t := r.chain.in
		t.compile(r, t.words.unpack(r.packed), r.comment)
		t.warm = append(t.warm, r)
	}
}

// cool forgets the code of rules that are not needed any more.
func (n *nftables) cool() {
	for _, r := range n.warm {
		r.changed, r.added, r.gone = false, false, false
		if !r.active {
			r.code = nil
		}
	}
	clear(n.warm)
	n.warm = n.warm[:0]
}

// targets lists the chains that a rule may send packets to.
func (r *rule) targets() (all []*chain) {
	if r.names == noNames {
		return nil
	}
	t := r.chain.in
	if c := t.chains[r.target]; c != nil {
		all = append(all, c)
	}
	for _, name := range r.sets {
		if s := t.sets[name]; s != nil {
			all = append(all, s.targets()...)
		}
	}
	return all
}

// classify finds out what a rule does to packets of which nothing is known.
func (t *table) classify(r *rule) {
	r.judges, r.leaves, r.never, r.ends = false, false, true, true
	judged := false
	m := machine{hit: func(*rule, string) bool { judged = true; return true }}
	for i := range anyForms[t.key.family] {
		m.form = &anyForms[t.key.family][i]
		m.affected, judged = false, false
		matched := m.apply(r)
		r.judges = r.judges || judged
		if m.tracked && !m.unreplied {
			r.never = r.never && matched == no && !m.affected && !judged
			r.ends = r.ends && matched == yes && len(m.verdicts) == 1 && m.verdicts[0].kind != proceed && m.verdicts[0].kind != jump
		}
	}
	r.leaves, r.untracking, r.silent = r.decides(func(*chain) {}), r.untracks(), r.isSilent()
	r.uses = r.markUse()
}

// manyElements is from how many elements of a set on only those are looked at that have
// changed.
const manyElements = 64

// reclassify classifies a rule whose set has changed; delta is nil if it is not known by
// which elements. Where there are many, what they do together only grows by those that have
// come, and nothing is left out if it does not shrink by those that are gone.
func (t *table) reclassify(r *rule, now, before, delta *set) {
	was := r.followed
	if delta == nil || now.elements.len() < manyElements || before.elements.len() < manyElements || was.judges {
		t.classify(r)
		return
	}
	whole := *now
	*now = *delta
	t.classify(r)
	*now = whole
	r.leaves, r.never, r.ends = r.leaves || was.leaves, r.never && was.never, false
}

// anyForms are all forms of packets of which nothing is known, by the family of a
// table.
var anyForms = makeAnyForms()

func makeAnyForms() map[byte][]form {
	all := make(map[byte][]form)
	for nfproto := range familyNames {
		for _, b := range []*base{{hook: forward}, {hook: prerouting, priority: priorityConntrack - 1}, {hook: bridgeForward}, {hook: ingress}} {
			b.families = familiesOf(nfproto)
			for _, untracked := range []bool{false, true} {
				b.forms(&Conn{Untracked: untracked, Flags: FIN | SYN}, true, func(f *form) {
					if !slices.Contains(all[nfproto], *f) {
						all[nfproto] = append(all[nfproto], *f)
					}
				})
			}
		}
	}
	return all
}

var seed = maphash.MakeSeed()

// digest is a digest of a rule without its counters. An anonymous set, whose name is
// another one each time, counts by what it contains. Names are added to refers.
func (t *table) digest(expressions iter.Seq[nftExpr], refers *names) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for e := range expressions {
		if e.name == "immediate" {
			v := parseAttrs(e.get(unix.NFTA_IMMEDIATE_DATA)).nested(unix.NFTA_DATA_VERDICT)
			if name := v.text(unix.NFTA_VERDICT_CHAIN); name != "" {
				refers.target = name
				if c := t.chains[name]; c != nil {
					refers.target = c.name // the same memory
				}
			}
		}
		s := t.set(e.setName())
		if s == nil {
			h.Write(e.plain())
			continue
		}
		if !slices.Contains(refers.sets, s.name) { // a rule may look into one twice
			refers.sets = append(refers.sets, s.name)
		}
		if s.flags&unix.NFT_SET_ANONYMOUS == 0 {
			h.Write(e.plain())
			continue
		}
		h.WriteString(e.name)
		for _, a := range e.attrs {
			if a.typ != setNames[e.name] {
				h.Write(binary.NativeEndian.AppendUint16(nil, a.typ))
				h.Write(a.data)
			}
		}
		h.Write(binary.NativeEndian.AppendUint64(nil, s.sum()))
	}
	h.WriteString(refers.comment)
	return h.Sum64()
}

// setNames is which attribute of an expression names a set.
var setNames = map[string]uint16{
	"lookup": unix.NFTA_LOOKUP_SET, "dynset": unix.NFTA_DYNSET_SET_NAME, "objref": unix.NFTA_OBJREF_SET_NAME,
}

func (e *nftExpr) setName() string {
	if typ := setNames[e.name]; typ != 0 {
		return e.text(typ)
	}
	return ""
}

// plain is an expression as netlink carries it, without what packets change in it.
func (e *nftExpr) plain() []byte {
	switch e.name {
	case "counter", "last", "quota":
		return e.raw[:min(len(e.raw), (unix.NLA_HDRLEN+len(e.name)+1+3)&^3)]
	}
	return e.raw
}

// expressionList iterates over a list of expressions.
func expressionList(list []byte) iter.Seq[nftExpr] {
	return func(yield func(nftExpr) bool) {
		for _, data := range nlmsg.Attributes(list) {
			if !yield(expression(data)) {
				return
			}
		}
	}
}

// words are expressions that many rules have. Rules are stored as numbers of words,
// and as what is no word.
type words struct {
	numbers map[string]uint64
	all     [][]byte
}

// mostWords bounds the memory. What rules have in common is in the first of them.
const mostWords = 4096

// pack appends an expression.
func (w *words) pack(to []byte, expression []byte) []byte {
	number, ok := w.numbers[string(expression)]
	if !ok && len(w.all) < mostWords {
		if w.numbers == nil {
			w.numbers = make(map[string]uint64)
		}
		w.all = append(w.all, bytes.Clone(expression))
		number, ok = uint64(len(w.all)), true
		w.numbers[string(expression)] = number
	}
	if ok {
		return binary.AppendUvarint(to, number)
	}
	to = binary.AppendUvarint(append(to, 0), uint64(len(expression)))
	return append(to, expression...)
}

// unpack iterates over the expressions of a rule.
func (w *words) unpack(b []byte) iter.Seq[nftExpr] {
	return func(yield func(nftExpr) bool) {
		for len(b) > 0 {
			number, n := binary.Uvarint(b)
			b = b[n:]
			var word []byte
			if number > 0 {
				word = w.all[number-1]
			} else {
				size, n := binary.Uvarint(b)
				word, b = b[n:n+int(size)], b[n+int(size):]
			}
			if !yield(expression(word)) {
				return
			}
		}
	}
}
