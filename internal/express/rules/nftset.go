package rules

import (
	"bytes"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// maxElements is how many elements of one set are read, and mostElements how
// many in all, to bound the memory. Those of other sets are unknown.
const (
	maxElements  = 16384
	mostElements = 65536
)

// set is a set or map of nftables.
type set struct {
	table   tableKey
	name    string
	flags   uint32
	holds   uint32 // kind of the objects in a map of such, NFT_OBJECT_*
	key     int    // length of a key in bytes
	lengths []int  // lengths of its fields, padded to 4 bytes
	// judges means that look-ups have effects: elements have limits or quotas
	// of their own.
	judges bool
	used   bool // by a rule
	// unknown means that the elements were not read, or that packets add some.
	unknown bool
	// expires means that elements expire without an announcement.
	expires  bool
	elements []element
	// bounded means that elements are boundaries: the last one that is not
	// above a key decides.
	bounded  bool
	fallback *element // catch-all
}

// element is a member of a set: one key, a range from low to high in each
// field, or, in a set of intervals without fields, a boundary.
type element struct {
	low, high []byte
	boundary  bool // nothing from here on
	data      []byte
	verdict   []verdict // one, in a verdict map
}

// readSets reads the sets of a table, without their elements.
func (r *nftReader) readSets(key tableKey) error {
	r.sets[key] = make(map[string]*set)
	return r.dump(unix.NFT_MSG_GETSET, key.family, map[uint16]string{unix.NFTA_SET_TABLE: key.name},
		func(family byte, a attrs) {
			if family != key.family || a.text(unix.NFTA_SET_TABLE) != key.name {
				return
			}
			s := newSet(key, a)
			r.sets[key][s.name] = s
		})
}

func newSet(key tableKey, a attrs) *set {
	const setExpr, setExpressions, setObjType, descConcat, fieldLen = 0x11, 0x12, 0xf, 2, 1
	s := &set{
		table: key,
		name:  a.text(unix.NFTA_SET_NAME),
		flags: a.number(unix.NFTA_SET_FLAGS),
		holds: a.number(setObjType),
		key:   int(a.number(unix.NFTA_SET_KEY_LEN)),
	}
	for _, e := range append(expressions(a.get(setExpressions)), expression(a.get(setExpr))) {
		s.judges = s.judges || e.name != "" && e.name != "counter"
	}
	s.unknown = s.flags&unix.NFT_SET_EVAL != 0
	s.expires = s.flags&unix.NFT_SET_TIMEOUT != 0
	for _, field := range nlmsg.Attributes(a.nested(unix.NFTA_SET_DESC).get(descConcat)) {
		s.lengths = append(s.lengths, (int(parseAttrs(field).number(fieldLen))+3)&^3)
	}
	return s
}

// readElements reads the elements of those sets that rules use.
func (r *nftReader) readElements() error {
	for _, sets := range r.sets {
		for _, s := range sets {
			if !s.used || s.unknown {
				continue
			}
			err := r.dump(unix.NFT_MSG_GETSETELEM, s.table.family,
				map[uint16]string{unix.NFTA_SET_ELEM_LIST_TABLE: s.table.name, unix.NFTA_SET_ELEM_LIST_SET: s.name},
				func(_ byte, a attrs) {
					for _, data := range nlmsg.Attributes(a.get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
						r.addElement(s, parseAttrs(data))
					}
				})
			if err != nil {
				return err
			}
			s.sort()
		}
	}
	return nil
}

func (r *nftReader) addElement(s *set, a attrs) {
	const elemObject, elemKeyEnd, elemExpressions = 0x9, 0xa, 0xb
	const elemCatchAll = 2
	for _, e := range append(expressions(a.get(elemExpressions)), expression(a.get(unix.NFTA_SET_ELEM_EXPR))) {
		s.judges = s.judges || e.name != "" && e.name != "counter"
	}
	if s.unknown || len(s.elements) >= maxElements || r.elements >= mostElements {
		s.unknown, s.elements = true, nil
		return
	}
	r.elements++
	var e element
	if data := a.get(unix.NFTA_SET_ELEM_DATA); data != nil {
		value := parseAttrs(data)
		if value.has(unix.NFTA_DATA_VERDICT) {
			v, _ := r.verdict(s.table, data)
			e.verdict = []verdict{v}
		}
		e.data = bytes.Clone(value.get(unix.NFTA_DATA_VALUE))
	}
	r.exact.has(a.text(elemObject))
	flags := a.number(unix.NFTA_SET_ELEM_FLAGS)
	if flags&elemCatchAll != 0 {
		s.fallback = &e
		return
	}
	e.low = bytes.Clone(a.nested(unix.NFTA_SET_ELEM_KEY).get(unix.NFTA_DATA_VALUE))
	e.high = bytes.Clone(a.nested(elemKeyEnd).get(unix.NFTA_DATA_VALUE))
	e.boundary = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0
	if len(e.low) != s.key || len(e.high) != 0 && len(e.high) != s.key {
		s.unknown = true // of a kind that is not known here
		return
	}
	s.elements = append(s.elements, e)
}

// sort orders the elements when all are read. Where one interval ends and the
// next begins at the same key, the beginning comes last, so that it decides.
func (s *set) sort() {
	s.bounded = s.flags&unix.NFT_SET_INTERVAL != 0 &&
		!slices.ContainsFunc(s.elements, func(e element) bool { return e.high != nil })
	slices.SortFunc(s.elements, func(a, b element) int {
		if c := bytes.Compare(a.low, b.low); c != 0 {
			return c
		}
		if a.boundary == b.boundary {
			return 0
		}
		if a.boundary {
			return -1
		}
		return 1
	})
}

// all lists the elements, including the catch-all element.
func (s *set) all() []element {
	if s.fallback == nil {
		return s.elements
	}
	return append(s.elements[:len(s.elements):len(s.elements)], *s.fallback)
}

// find returns the elements that packets with a key may find, and whether they
// find one.
func (s *set) find(key []octet) (truth, []*element) {
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
		all := make([]*element, 0, len(s.elements))
		for i := range s.elements {
			if !s.elements[i].boundary {
				all = append(all, &s.elements[i])
			}
		}
		if len(all) == 0 {
			return no, nil
		}
		return t, all
	}
	above := sort.Search(len(s.elements), func(i int) bool {
		order, _ := compare(key, s.elements[i].low)
		return order < 0
	})
	if above == 0 || s.elements[above-1].boundary {
		return no, nil
	}
	return yes, []*element{&s.elements[above-1]}
}

// findEqual finds a key among single keys and ranges.
func (s *set) findEqual(key []octet) (truth, []*element) {
	if doubt(key) == yes && s.flags&unix.NFT_SET_INTERVAL == 0 {
		i, ok := sort.Find(len(s.elements), func(i int) int {
			order, _ := compare(key, s.elements[i].low)
			return order
		})
		if !ok {
			return no, nil
		}
		return yes, []*element{&s.elements[i]}
	}
	t := no
	var found []*element
	for i := range s.elements {
		switch e := &s.elements[i]; e.contains(key, s.fields()) {
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
