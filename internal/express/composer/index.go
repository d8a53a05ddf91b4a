package composer

import (
	"encoding/binary"
	"slices"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// mostIndexed bounds the Conentries of an index: those among which the concerned are found
// in a few milliseconds.
const mostIndexed = 1 << 16

// index has the Conentries by what the rules are asked about. It is kept between changes of
// the rules: to list thousands takes milliseconds, in which nothing would go express.
// Those that are gone stay in it until tidy.
type index struct {
	kinds   map[kind][]candidate
	size    int
	partial bool // there were too many
}

// kind is what the rules are asked about, but for addresses and ports.
type kind struct {
	subject
	proto  uint8
	is4    bool
	status uint32
}

func kindOf(e *contable.Conentry) kind {
	return kind{subjectOf(e), e.Conn.Orig.Proto, e.Conn.Orig.Src.Addr().Is4(), e.Conn.Status}
}

// candidate is a Conentry, with its addresses and ports as rules.Ends has them.
type candidate struct {
	e     *contable.Conentry
	addrs [4][2]uint64
	ports [4]uint16
}

func candidateOf(e *contable.Conentry) candidate {
	x := candidate{e: e}
	for i, end := range rules.Ends(&e.Conn) {
		b := end.Addr().As16()
		x.addrs[i] = [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
		x.ports[i] = end.Port()
	}
	return x
}

// add adds a Conentry that is new, or has become one of another kind.
func (x *index) add(e *contable.Conentry) {
	if x.partial = x.partial || x.size >= mostIndexed; x.partial {
		return
	}
	k := kindOf(e)
	x.kinds[k] = append(x.kinds[k], candidateOf(e))
	x.size++
}

// tidy removes what is gone or of another kind, and begins again where there were too many.
func (x *index) tidy(table *contable.Table) {
	if x.partial {
		clear(x.kinds)
		x.size = 0
		if table.Len() > mostIndexed/2 {
			return
		}
		x.partial = false
		table.All(x.add)
		return
	}
	x.size = 0
	for k, all := range x.kinds {
		all = slices.DeleteFunc(all, func(c candidate) bool { return c.e.Gone || kindOf(c.e) != k })
		x.kinds[k] = all
		if x.size += len(all); len(all) == 0 {
			delete(x.kinds, k)
		}
	}
}
