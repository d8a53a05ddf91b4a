package rules

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// maxElements is how many elements of one set are read, and mostElements how
// many in all, to bound the memory. Those of other sets are unknown.
const (
	maxElements  = 32768
	mostElements = 131072
)

// set is a set or map of nftables.
type set struct {
	in      *table
	name    string
	handle  uint64
	flags   uint32
	holds   uint32 // kind of the objects in a map of such, NFT_OBJECT_*
	key     int    // length of a key in bytes
	lengths []int  // lengths of its fields, padded to 4 bytes
	// judges means that look-ups have effects: elements have limits or quotas
	// of their own.
	judges bool
	// unknown means that the elements were not read, or that packets add some.
	unknown bool
	// expires means that elements expire without an announcement, dynamic that
	// packets add some.
	expires  bool
	dynamic  bool
	elements list
	// bounded means that elements are boundaries: the last one that is not
	// above a key decides.
	bounded  bool
	fallback *element        // catch-all
	probe    *probe          // asks whether packets find what has changed, while it is set
	changes  []elementChange // not yet in elements
	// touched are the elements that came or went after the set was as in since, which a
	// transaction noted.
	touched []element
	since   *set
}

// elementChange is an element that was added or removed.
type elementChange struct {
	element
	gone bool
}

// element is a member of a set: one key, a range from low to high in each
// field, or, in a set of intervals without fields, a boundary.
type element struct {
	low, high []byte
	boundary  bool // nothing from here on
	data      []byte
	verdict   []verdict // one, in a verdict map
}

// newSet takes a set, without its elements.
func (t *table) newSet(a attrs) {
	if !t.kept && !t.fresh {
		t.skipped = true
		return
	}
	s := makeSet(a)
	s.in = t
	if old := t.sets[s.name]; old != nil {
		if old.handle != s.handle || old.flags != s.flags || old.key != s.key {
			t.doubt("a set has another handle or type")
		}
		return
	}
	t.noteSet(s.name)
	t.sets[s.name] = s
}

func makeSet(a attrs) *set {
	const setExpr, setExpressions, setObjType, setHandle, descConcat, fieldLen = 0x11, 0x12, 0xf, 0x10, 2, 1
	s := &set{
		name:   a.text(unix.NFTA_SET_NAME),
		handle: a.handle(setHandle),
		flags:  a.number(unix.NFTA_SET_FLAGS),
		holds:  a.number(setObjType),
		key:    int(a.number(unix.NFTA_SET_KEY_LEN)),
	}
	for _, e := range append(expressions(a.get(setExpressions)), expression(a.get(setExpr))) {
		s.judges = s.judges || e.name != "" && e.name != "counter"
	}
	s.unknown = s.flags&unix.NFT_SET_EVAL != 0
	s.dynamic = s.unknown
	s.expires = s.flags&unix.NFT_SET_TIMEOUT != 0
	for _, field := range nlmsg.Attributes(a.nested(unix.NFTA_SET_DESC).get(descConcat)) {
		s.lengths = append(s.lengths, (int(parseAttrs(field).number(fieldLen))+3)&^3)
	}
	return s
}

// isSilent reports whether what a look-up finds may change without an announcement.
func (s *set) isSilent() bool { return s.expires || s.dynamic }

func (t *table) deleteSet(a attrs) {
	if !t.kept && !t.fresh {
		return
	}
	if s := t.sets[a.text(unix.NFTA_SET_NAME)]; s != nil {
		t.removeSet(s)
		return
	}
	t.doubt("a set that is not known")
}

func (t *table) removeSet(s *set) {
	t.noteSet(s.name)
	t.elements -= s.elements.len()
	delete(t.sets, s.name)
}

// set returns a set with all its elements, nil if there is none of that name.
func (t *table) set(name string) *set {
	s := t.sets[name]
	if s != nil {
		s.settle()
	}
	return s
}

// changeElements takes elements that are new, or gone.
func (t *table) changeElements(a attrs, gone bool) {
	if !t.kept && !t.fresh {
		return
	}
	s := t.sets[a.text(unix.NFTA_SET_ELEM_LIST_SET)]
	if s == nil {
		t.doubt("a set that is not known")
		return
	}
	t.noteSet(s.name)
	for _, data := range nlmsg.Attributes(a.get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		t.changeElement(s, parseAttrs(data), gone)
	}
}

func (t *table) changeElement(s *set, a attrs, gone bool) {
	const elemObject, elemKeyEnd, elemExpressions = 0x9, 0xa, 0xb
	const elemCatchAll = 2
	for _, e := range append(expressions(a.get(elemExpressions)), expression(a.get(unix.NFTA_SET_ELEM_EXPR))) {
		s.judges = s.judges || e.name != "" && e.name != "counter"
	}
	if s.unknown {
		return
	}
	var e element
	if data := a.get(unix.NFTA_SET_ELEM_DATA); data != nil {
		value := parseAttrs(data)
		if value.has(unix.NFTA_DATA_VERDICT) {
			v, _ := t.verdict(data)
			e.verdict = []verdict{v}
		}
		e.data = bytes.Clone(value.get(unix.NFTA_DATA_VALUE))
	}
	t.exact.has(a.text(elemObject))
	flags := a.number(unix.NFTA_SET_ELEM_FLAGS)
	if flags&elemCatchAll != 0 {
		if s.fallback = &e; gone {
			s.fallback = nil
		}
		return
	}
	e.low = bytes.Clone(a.nested(unix.NFTA_SET_ELEM_KEY).get(unix.NFTA_DATA_VALUE))
	e.high = bytes.Clone(a.nested(elemKeyEnd).get(unix.NFTA_DATA_VALUE))
	e.boundary = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
	if len(e.low) != s.key || len(e.high) != 0 && len(e.high) != s.key {
		s.forget() // of a kind that is not known here
		return
	}
	s.changes = append(s.changes, elementChange{e, gone})
	if len(s.changes) > 2*maxElements {
		s.forget()
	}
}

// forget makes all elements unknown.
func (s *set) forget() {
	if s.in != nil {
		s.in.elements -= s.elements.len()
	}
	s.unknown, s.elements, s.changes = true, list{}, nil
}

// settle orders the elements after changes. An earlier copy of the set stays as it was.
func (s *set) settle() {
	if s.unknown {
		s.elements = list{}
	}
	if len(s.changes) == 0 {
		return
	}
	sort.SliceStable(s.changes, func(i, j int) bool { return s.changes[i].compare(&s.changes[j].element) < 0 })
	last := s.changes[:0] // of each element
	for i, c := range s.changes {
		if i+1 == len(s.changes) || c.compare(&s.changes[i+1].element) != 0 {
			last = append(last, c)
		}
	}
	if s.since != nil {
		for _, c := range last {
			s.touched = append(s.touched, c.element)
		}
	}
	next := s.elements.changed(last)
	if n := s.in.elements + next.len() - s.elements.len(); next.len() > maxElements || n > mostElements {
		s.forget()
		return
	}
	s.in.elements += next.len() - s.elements.len()
	s.elements, s.changes = next, nil
	s.bounded = s.flags&unix.NFT_SET_INTERVAL != 0 && next.highs == 0
}

// compare orders elements. Where one interval ends and the next begins at the same
// key, the beginning comes last, so that it decides.
func (e *element) compare(o *element) int {
	if c := bytes.Compare(e.low, o.low); c != 0 {
		return c
	}
	if e.boundary != o.boundary {
		if e.boundary {
			return -1
		}
		return 1
	}
	return bytes.Compare(e.high, o.high)
}

// sum is a digest of a set's elements and of what a look-up does with them.
func (s *set) sum() uint64 {
	s.settle()
	var h maphash.Hash
	h.SetSeed(seed)
	part := func(b []byte) {
		h.Write(binary.NativeEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	for _, n := range append([]int{int(s.flags), int(s.holds), s.key}, s.lengths...) {
		h.Write(binary.NativeEndian.AppendUint64(nil, uint64(n)))
	}
	if s.judges {
		h.WriteByte(1)
	}
	if s.unknown {
		h.WriteByte(2)
	}
	for e := range s.all() {
		part(e.low)
		part(e.high)
		part(e.data)
		if e.boundary {
			h.WriteByte(3)
		}
		for _, v := range e.verdict {
			h.WriteByte(byte(v.kind))
			part([]byte(v.targetName()))
		}
	}
	return h.Sum64()
}

// targetName is the name of the chain that a verdict leads to, "" for none.
func (v verdict) targetName() string {
	if v.target == nil {
		return ""
	}
	return v.target.name
}

// sameVerdicts compares verdicts by the names of chains.
func sameVerdicts(a, b []verdict) bool {
	return slices.EqualFunc(a, b, func(a, b verdict) bool { return a.kind == b.kind && a.targetName() == b.targetName() })
}

// targets lists the chains that the elements of a verdict map lead to.
func (s *set) targets() (all []*chain) {
	s.settle()
	seen := make(map[*chain]bool)
	for e := range s.all() {
		for _, v := range e.verdict {
			if v.target == nil {
				continue
			}
			if c := s.in.chains[v.target.name]; c != nil && !seen[c] {
				seen[c] = true
				all = append(all, c)
			}
		}
	}
	return all
}

// delta returns the set with only the elements that it has and another one has not, or the
// other way round: no others make a look-up find something else. It reports false if that
// cannot be said: of boundaries one alone means nothing, what is not known has no elements,
// and a set that was made anew may have keys of another form.
func (s *set) delta(o *set) (differ *set, ok bool) {
	if s.unknown || o.unknown || s.judges != o.judges || s.bounded || o.bounded || s.fallback != o.fallback || !s.sameType(o) {
		return nil, false
	}
	differ = new(set)
	*differ = *s
	differ.fallback, differ.touched, differ.since = nil, nil, nil
	if s.since == o {
		differ.elements = listOf(s.differing(o))
		return differ, true
	}
	var all []element
	a, b := slices.Concat(s.elements.pieces...), slices.Concat(o.elements.pieces...)
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].compare(&b[0]) < 0:
			all, a = append(all, a[0]), a[1:]
		case len(a) == 0 || a[0].compare(&b[0]) > 0:
			all, b = append(all, b[0]), b[1:]
		default:
			if s.expires || !a[0].equal(&b[0]) {
				all = append(all, a[0])
			}
			a, b = a[1:], b[1:]
		}
	}
	differ.elements = listOf(all)
	return differ, true
}

// differing lists the elements for delta where they are among those that were touched.
func (s *set) differing(o *set) (all []element) {
	sort.Slice(s.touched, func(i, j int) bool { return s.touched[i].compare(&s.touched[j]) < 0 })
	s.touched = slices.CompactFunc(s.touched, func(a, b element) bool { return a.compare(&b) == 0 })
	for i := range s.touched {
		now, before := s.elements.find(&s.touched[i]), o.elements.find(&s.touched[i])
		switch {
		case now != nil && (s.expires || before == nil || !now.equal(before)): // the one before may have expired
			all = append(all, *now)
		case now == nil && before != nil:
			all = append(all, *before)
		}
	}
	return all
}

// sameType reports whether the keys and the data of two sets have the same form.
func (s *set) sameType(o *set) bool {
	return s.flags == o.flags && s.holds == o.holds && s.key == o.key && slices.Equal(s.lengths, o.lengths)
}

// equal reports whether look-ups of two elements with the same key find the same.
func (e *element) equal(o *element) bool {
	return e.compare(o) == 0 && bytes.Equal(e.data, o.data) && sameVerdicts(e.verdict, o.verdict)
}

// all yields the elements, including the catch-all element.
func (s *set) all() iter.Seq[*element] {
	return func(yield func(*element) bool) {
		for e := range s.elements.each() {
			if !yield(e) {
				return
			}
		}
		if s.fallback != nil {
			yield(s.fallback)
		}
	}
}

// probe is the elements by which a set has changed, and whether a packet met one: what it
// looks up may be another than before.
type probe struct {
	delta *set
	met   bool
}

// find returns the elements that packets with a key may find, and whether they
// find one.
func (s *set) find(key []octet) (truth, []*element) {
	if p := s.probe; p != nil {
		t, _ := p.delta.find(key)
		p.met = p.met || t != no
		return maybe, nil
	}
	if s.unknown || len(key) != s.key {
		return maybe.and(doubt(key)), nil
	}
	find := s.findEqual
	if s.bounded {
		find = s.findInterval
	}
	certain := yes
	if s.expires {
		certain = maybe
	}
	t, found := find(key)
	t = t.and(certain)
	if t != yes && s.fallback != nil {
		t, found = max(t, certain), append(found, s.fallback)
	}
	return t, found
}

// findInterval finds a key among boundaries.
func (s *set) findInterval(key []octet) (truth, []*element) {
	if t := doubt(key); t != yes {
		var all []*element
		first := sort.Search(s.elements.len(), func(i int) bool { return leastTo(key, s.elements.at(i).low) < 0 })
		behind := sort.Search(s.elements.len(), func(i int) bool { return mostTo(key, s.elements.at(i).low) < 0 })
		for i := max(first-1, 0); i < behind; i++ {
			if e := s.elements.at(i); !e.boundary {
				all = append(all, e)
			}
		}
		if len(all) == 0 {
			return no, nil
		}
		return t, all
	}
	above := sort.Search(s.elements.len(), func(i int) bool {
		order, _ := compare(key, s.elements.at(i).low)
		return order < 0
	})
	if above == 0 || s.elements.at(above-1).boundary {
		return no, nil
	}
	return yes, []*element{s.elements.at(above - 1)}
}

// findEqual finds a key among single keys and ranges.
func (s *set) findEqual(key []octet) (truth, []*element) {
	if doubt(key) == yes && s.flags&unix.NFT_SET_INTERVAL == 0 {
		i, ok := sort.Find(s.elements.len(), func(i int) int {
			order, _ := compare(key, s.elements.at(i).low)
			return order
		})
		if !ok {
			return no, nil
		}
		return yes, []*element{s.elements.at(i)}
	}
	t := no
	var found []*element
	for e := range s.elements.each() {
		switch e.contains(key, s.fields()) {
		case yes:
			return yes, []*element{e}
		case maybe:
			t, found = max(t, maybe), append(found, e)
		case varies:
			t, found = varies, append(found, e)
		}
	}
	return t, found
}

// fields returns the lengths of a key's fields.
func (s *set) fields() []int {
	if len(s.lengths) == 0 {
		return []int{s.key}
	}
	return s.lengths
}

// contains compares a key with an element field by field.
func (e *element) contains(key []octet, fields []int) truth {
	if e.high == nil {
		return equal(key, e.low, nil)
	}
	t, from := yes, 0
	for _, n := range fields {
		to := min(from+n, len(key))
		if bytes.Equal(e.low[from:to], e.high[from:to]) {
			t = t.and(equal(key[from:to], e.low[from:to], nil))
		} else {
			t = t.and(between(key[from:to], e.low[from:to], e.high[from:to]))
		}
		from = to
	}
	return t
}
