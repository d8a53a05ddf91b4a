package composer

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"time"

	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/rules"
)

// deciding bounds the time to find out which Conentries a change of the rules
// concerns: nothing goes express meanwhile.
//
// Raising the generation has both halves of each Conentry confirmed by a regular
// packet. At 200,000 packets a second, those of 8000 take 80 ms.
const deciding = 10 * time.Millisecond

// fewConcerned is how many Conentries are retired at most. More are cheaper to
// confirm by a packet each, with all others, than to compose again.
const fewConcerned = 64

// RulesChanged retires the Conentries that a change of the rules concerns. If these
// are too many, or are not found in time, it returns why every decision has to be
// confirmed.
func (c *Composer) RulesChanged(change *rules.Change, now time.Time) (everything string) {
	q := inquiry{Composer: c, change: change, start: time.Now()}
	defer q.forget()
	for kind, all := range q.kinds() {
		if asked, ok := q.ask(kind.subject, all[0].e.Conn); ok {
			q.search(all, asked, 0)
		} else {
			q.concern(all...)
		}
	}
	if q.everything != "" {
		return q.everything
	}
	c.table.All(func(e *contable.Conentry) {
		if e.Bound == BoundByRule { // which may be gone, whether it matched or not
			e.Reading = c.reading - 1
		}
	})
	for _, e := range q.concerned {
		if c.keepByRule(subjectOf(e), e.Conn) {
			c.refuse(e.Port, PerPacketRule)
		}
		c.table.Retire(e, now)
		c.retired++
	}
	return ""
}

// Retired counts the Conentries that changes of rules concerned.
func (c *Composer) Retired() uint64 { return c.retired }

// inquiry finds out which Conentries a change concerns.
//
// It asks about many connections at a time, of which only the leading bits that they
// have in common are known, and halves those that may be concerned by an address or a
// port, each in turn. So those that a rule about one address or one port concerns
// are found by few questions.
type inquiry struct {
	*Composer
	change     change
	start      time.Time
	questions  int
	concerned  []*contable.Conentry
	everything string
}

// change is a rules.Change.
type change interface {
	MayConcern(rules.Conn) bool
	Concerns(rules.Conn) bool
}

// kind is what the rules are asked about, but for addresses and ports.
type kind struct {
	subject
	proto  uint8
	is4    bool
	status uint32
}

// candidate is a Conentry, with its addresses and ports as rules.Ends has them.
type candidate struct {
	e     *contable.Conentry
	addrs [4][2]uint64
	ports [4]uint16
}

// often is between how many steps of an inquiry the time is looked at.
const often = 64

// kinds sorts all Conentries, into memory that is used again for the next change.
func (q *inquiry) kinds() map[kind][]candidate {
	var last kind
	var alike []candidate
	seen := 0
	q.table.All(func(e *contable.Conentry) {
		if seen++; q.everything != "" || seen%often == 0 && q.late() {
			return
		}
		k := kind{subjectOf(e), e.Conn.Orig.Proto, e.Conn.Orig.Src.Addr().Is4(), e.Conn.Status}
		if k != last {
			q.candidates[last] = alike
			last, alike = k, q.candidates[k]
		}
		alike = append(alike, candidateOf(e))
	})
	q.candidates[last] = alike
	maps.DeleteFunc(q.candidates, func(_ kind, all []candidate) bool { return len(all) == 0 })
	return q.candidates
}

// forget empties the memory of kinds.
func (q *inquiry) forget() {
	for k, all := range q.candidates {
		clear(all)
		q.candidates[k] = all[:0]
	}
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

// late reports whether the time is over.
func (q *inquiry) late() bool {
	if time.Since(q.start) > deciding {
		q.everything = "rules changed, and it takes long to find out which connections are concerned"
	}
	return q.everything != ""
}

func (q *inquiry) concern(all ...candidate) {
	for _, x := range all {
		q.concerned = append(q.concerned, x.e)
	}
	if len(q.concerned) > fewConcerned {
		q.everything = "rules changed that concern many connections"
	}
}

// search finds those of a kind that the change concerns. turn is the address or port by
// which they are halved, if it is not the same.
func (q *inquiry) search(all []candidate, asked rules.Conn, turn int) {
	if q.questions++; q.everything != "" || q.questions%often == 0 && q.late() {
		return
	}
	asked.Conn = all[0].e.Conn
	if len(all) == 1 {
		asked.Shared = nil
		if q.change.Concerns(asked) {
			q.concern(all[0])
		}
		return
	}
	differ := differences(all)
	asked.Shared = differ.shared(asked.Orig.Src.Addr())
	if !q.change.MayConcern(asked) {
		return
	}
	for range places {
		if differ.in(turn) {
			with, without := differ.halve(all, turn)
			q.search(with, asked, (turn+1)%places)
			q.search(without, asked, (turn+1)%places)
			return
		}
		turn = (turn + 1) % places
	}
	q.concern(all...) // equal ones
}

// places are the addresses and ports of a candidate: the four addresses, then the ports.
const places = 8

// difference is the bits in which candidates differ.
type difference struct {
	addrs [4][2]uint64
	ports [4]uint16
}

func differences(all []candidate) (d difference) {
	first := &all[0]
	for i := range all {
		x := &all[i]
		for j := range d.ports {
			d.addrs[j][0] |= x.addrs[j][0] ^ first.addrs[j][0]
			d.addrs[j][1] |= x.addrs[j][1] ^ first.addrs[j][1]
			d.ports[j] |= x.ports[j] ^ first.ports[j]
		}
	}
	return d
}

// in reports whether candidates differ at a place.
func (d *difference) in(place int) bool {
	if place < 4 {
		return d.addrs[place] != [2]uint64{}
	}
	return d.ports[place-4] != 0
}

// shared is what candidates have in common, whose addresses are of the family of one.
func (d *difference) shared(family netip.Addr) *rules.Shared {
	var s rules.Shared
	for i := range s {
		same := bits.LeadingZeros64(d.addrs[i][0])
		if same == 64 {
			same += bits.LeadingZeros64(d.addrs[i][1])
		}
		s[i].Addr, s[i].Port = uint8(same-(128-family.BitLen())), uint8(bits.LeadingZeros16(d.ports[i]))
	}
	return &s
}

// halve sorts candidates by the first bit in which they differ at a place.
func (d *difference) halve(all []candidate, place int) (with, without []candidate) {
	var has func(x *candidate) bool
	if place < 4 {
		word := 0
		if d.addrs[place][0] == 0 {
			word = 1
		}
		bit := uint64(1) << (bits.Len64(d.addrs[place][word]) - 1)
		has = func(x *candidate) bool { return x.addrs[place][word]&bit != 0 }
	} else {
		bit := uint16(1) << (bits.Len16(d.ports[place-4]) - 1)
		has = func(x *candidate) bool { return x.ports[place-4]&bit != 0 }
	}
	n := 0
	for i := range all {
		if has(&all[i]) {
			all[n], all[i] = all[i], all[n]
			n++
		}
	}
	return all[:n], all[n:]
}
