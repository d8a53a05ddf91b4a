package composer

import (
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

// fewConcerned is how many Conentries are withdrawn by themselves at most: more take longer
// than nothing should go express for.
const fewConcerned = 64

// RulesChanged has the Conentries that a change of the rules concerns confirmed by a
// regular packet, and retires those that a rule keeps regular now. If these
// are too many, or are not found in time, it returns why every decision has to be
// confirmed.
func (c *Composer) RulesChanged(change *rules.Change, now time.Time) (everything string) {
	if c.index.partial {
		return "rules changed, and there are many connections"
	}
	q := inquiry{Composer: c, change: change, start: time.Now(), most: fewConcerned}
	for kind, all := range c.index.kinds {
		q.askAll(kind, all)
	}
	if q.everything != "" {
		return q.everything
	}
	c.leases.ruleGone = true // whether it matched or not
	for _, e := range q.concerned {
		if c.keepByRule(subjectOf(e), c.table.Conn(e)) {
			c.refuse(e.Port(), PerPacketRule)
			c.table.Retire(e)
		} else {
			c.outdate(e) // a rule may bound it now
			c.withdraw(e)
		}
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
// port: by one of which the change concerns only one half, if there is such a one. So
// those that a rule about one address or one port concerns are found by few questions.
type inquiry struct {
	*Composer
	change     change
	start      time.Time
	most       int // concerned
	questions  int
	kind       kind // of those that are asked about
	place      int  // that has told halves apart
	concerned  []*contable.Conentry
	everything string
}

// change is a rules.Change.
type change interface {
	MayConcern(rules.Conn) bool
	Concerns(rules.Conn) bool
}

// often is between how many questions the time is looked at.
const often = 64

// late reports whether the time is over.
func (q *inquiry) late() bool {
	if time.Since(q.start) > deciding {
		q.everything = "rules changed, and it takes long to find out which connections are concerned"
	}
	return q.everything != ""
}

// askAll finds those of a kind that the change concerns.
func (q *inquiry) askAll(k kind, all []candidate) {
	if len(all) == 0 || q.everything != "" {
		return
	}
	q.kind = k
	asked, ok := q.ask(k.subject, all[0].conn(k))
	if !ok {
		q.concern(all)
		return
	}
	if differ, may := q.may(all, &asked); may {
		q.search(all, differ, &asked)
	}
}

// concern takes those that are concerned, but for what the index has not forgotten yet.
func (q *inquiry) concern(all []candidate) {
	for _, x := range all {
		if e := q.table.Live(x.ref); e != nil && q.kind.is(e) {
			q.concerned = append(q.concerned, e)
		}
	}
	if len(q.concerned) > q.most {
		q.everything = "rules changed that concern many connections"
	}
}

// may asks whether the change may concern one of some of a kind, and returns in what they
// differ.
func (q *inquiry) may(all []candidate, asked *rules.Conn) (differ difference, may bool) {
	if q.questions++; q.everything != "" || q.questions%often == 0 && q.late() {
		return differ, false
	}
	differ = differences(all)
	asked.Conn = all[0].conn(q.kind)
	asked.Shared = differ.shared(asked.Orig.Src.Addr())
	return differ, q.change.MayConcern(*asked)
}

// search finds those that the change concerns among some of which it may concern one.
func (q *inquiry) search(all []candidate, differ difference, asked *rules.Conn) {
	if differ == (difference{}) { // one, or a connection that is gone and has begun again
		asked.Conn, asked.Shared = all[0].conn(q.kind), nil
		if q.change.Concerns(*asked) {
			q.concern(all)
		}
		return
	}
	var halves [2][]candidate
	var in [2]difference
	var may [2]bool
	for _, place := range append([]int{q.place}, places...) {
		if !differ.in(place) {
			continue
		}
		halves[0], halves[1] = differ.halve(all, place)
		for j, half := range halves {
			in[j], may[j] = q.may(half, asked)
		}
		if !may[0] || !may[1] {
			q.place = place
			break
		}
	}
	for j, half := range halves {
		if may[j] {
			q.search(half, in[j], asked)
		}
	}
}

// places are the addresses (0 to 3) and ports (4 to 7) of a candidate. Where none tells halves
// apart, since a rule may match by several, the last one that differs halves: few servers
// are soon told apart.
var places = []int{4, 7, 0, 3, 1, 2, 6, 5}

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
