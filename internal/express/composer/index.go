package composer

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/scon-project/scon/internal/express/conntrack"
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

func kindOf(e *contable.Conentry, conn conntrack.Conn) kind {
	return kind{subjectOf(e), conn.Orig.Proto, conn.Orig.Src.Addr().Is4(), conn.Status}
}

// is reports whether a Conentry that was of a kind still is.
func (k kind) is(e *contable.Conentry) bool {
	return k.subject == subjectOf(e) && k.status == e.Status
}

// candidate is a Conentry, with its addresses and ports as rules.Ends has them.
type candidate struct {
	ref   contable.Ref
	addrs [4][2]uint64
	ports [4]uint16
}

func candidateOf(ref contable.Ref, conn conntrack.Conn) candidate {
	x := candidate{ref: ref}
	for i, end := range rules.Ends(&conn) {
		b := end.Addr().As16()
		x.addrs[i] = [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
		x.ports[i] = end.Port()
	}
	return x
}

// conn is the connection of a candidate of a kind.
func (x *candidate) conn(k kind) conntrack.Conn {
	var ends [4]netip.AddrPort
	for i := range ends {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], x.addrs[i][0])
		binary.BigEndian.PutUint64(b[8:], x.addrs[i][1])
		addr := netip.AddrFrom16(b)
		if k.is4 {
			addr = addr.Unmap()
		}
		ends[i] = netip.AddrPortFrom(addr, x.ports[i])
	}
	return conntrack.Conn{
		Orig:   conntrack.Tuple{Proto: k.proto, Src: ends[0], Dst: ends[1]},
		Reply:  conntrack.Tuple{Proto: k.proto, Src: ends[2], Dst: ends[3]},
		Status: k.status,
	}
}

// add adds a Conentry that is new, or has become one of another kind.
func (x *index) add(e *contable.Conentry, conn conntrack.Conn) {
	if x.partial = x.partial || x.size >= mostIndexed; x.partial {
		return
	}
	k := kindOf(e, conn)
	x.kinds[k] = append(x.kinds[k], candidateOf(e.Ref(), conn))
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
		table.All(func(e *contable.Conentry) { x.add(e, table.Conn(e)) })
		return
	}
	x.size = 0
	for k, all := range x.kinds {
		all = slices.DeleteFunc(all, func(c candidate) bool {
			e := table.Live(c.ref)
			return e == nil || !k.is(e)
		})
		x.kinds[k] = all
		if x.size += len(all); len(all) == 0 {
			delete(x.kinds, k)
		}
	}
}
