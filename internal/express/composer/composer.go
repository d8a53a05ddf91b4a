// Package composer decides which connections of containers become Conentries,
// and when they stop being ones: the composer and the flusher of "Intelligent
// Packet Processing for Performant Containers in IoT", section V-B.
//
// A Composer owns the decisions: what each container may still ask for, which
// connections a rule keeps regular, which candidates wait for their other end.
// TCP keeps conntrack's view of composed connections true. Both belong to the
// daemon's loop: no method may be called by another goroutine.
package composer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/contable"
	"github.com/scon-project/scon/internal/express/datapath"
	"github.com/scon-project/scon/internal/express/discover"
	"github.com/scon-project/scon/internal/express/rules"
)

const protoTCP = unix.IPPROTO_TCP

// Ports are the hooked ports of containers.
type Ports interface {
	// Port returns the hooked port with an ifindex, nil if there is none.
	Port(ifindex int) *discover.Port
	// Inside lists the devices by which IP may see packets of the container
	// behind a port come and go.
	Inside(p *discover.Port) []rules.Device
	// Outside lists those by which IP may see packets come and go outside.
	Outside() []rules.Device
	// Bridged lists the uplinks that are ports of the bridge of the container behind a
	// port.
	Bridged(p *discover.Port) []rules.Device
	// Asks is what a queue of the devices asks that packets leave by.
	Asks() discover.Question
}

// Rules are the kernel's rules, as last read.
type Rules interface {
	// Judges reports whether any rule may judge single packets.
	Judges() bool
	// Touches finds a rule that judges single packets and that a connection may
	// reach.
	Touches(rules.Conn) (rules.Rule, bool)
	// Silent finds a rule that depends on what changes without an announcement,
	// and that a connection may reach; IsSilent reports whether there is one.
	Silent(rules.Conn) (rules.Rule, rules.Silence)
	IsSilent() bool
	// HasLegacy reports whether there are tables of iptables-legacy.
	HasLegacy() bool
	// Untracked reports whether conntrack certainly sees no packet of a connection.
	Untracked(rules.Conn) bool
	// TracksBridges reports whether conntrack has functions at the hooks of bridges.
	TracksBridges() bool
	// HidesEnds reports whether conntrack may not announce the end of connections.
	HidesEnds() bool
	// TimesOut reports whether connections may have timeouts that a rule chose.
	TimesOut() bool
	// KnowsTracked reports whether it is known of which families conntrack sees
	// packets, and noticed when that changes.
	KnowsTracked() bool
}

// Options are what a Composer works on. All are required.
type Options struct {
	Table     *contable.Table
	Conntrack *conntrack.Client
	Ports     Ports
	Rules     Rules
	// Lease is how long a decision is used before a packet confirms it, LeaseMax
	// the same where nothing matters that is not announced.
	Lease, LeaseMax time.Duration
	// Discardable reports whether the rules certainly drop every packet of a
	// connection that conntrack does not know. It may take long. nil: the programs cannot
	// see Netfilter drop packets.
	Discardable func(rules.Flow) bool
	// Keep says why packets at a container's port have no Conentry, so that they are
	// counted accordingly.
	Keep func(port int, k datapath.Kept)
}

// Composer makes Conentries of candidates.
type Composer struct {
	table    *contable.Table
	ct       *conntrack.Client
	ports    Ports
	rules    Rules
	lease    time.Duration
	leaseMax time.Duration
	dropped  func(rules.Flow) bool // Options.Discardable
	keep     func(port int, k datapath.Kept)
	leases   leases

	accounts map[int]*account // by port
	time     usage            // by all candidates
	kept     map[conntrack.Tuple]subject
	ends     map[conntrack.Tuple]oneEnd
	recheck  recheck
	composed uint64
	// unconfirmed have just been placed.
	unconfirmed []*contable.Conentry
	refused     map[Refusal]uint64
	retired     uint64 // by changes of rules that concerned them

	index index
}

// New returns a Composer that has composed nothing yet.
func New(o Options) *Composer {
	return &Composer{
		table:    o.Table,
		ct:       o.Conntrack,
		ports:    o.Ports,
		rules:    o.Rules,
		lease:    o.Lease,
		leaseMax: o.LeaseMax,
		leases:   newLeases(o.Table.Places()),
		dropped:  o.Discardable,
		keep:     o.Keep,
		accounts: make(map[int]*account),
		kept:     make(map[conntrack.Tuple]subject),
		ends:     make(map[conntrack.Tuple]oneEnd),
		refused:  make(map[Refusal]uint64),
		index:    index{kinds: make(map[kind][]candidate)},
	}
}

// Adopt takes over the Conentries that an earlier daemon left in the table, and
// returns how many it kept. All other connections are candidates anew: the settings may differ.
func (c *Composer) Adopt(now time.Time) (kept int) {
	hooked := func(port int) bool { return c.ports.Port(port) != nil }
	kept = c.table.Adopt(hooked, c.stillFit, now)
	c.table.All(c.placed)
	c.table.CountAnew()
	return kept
}

// stillFit asks conntrack about a connection that an earlier daemon composed.
// Conntrack may have lost it since and picked it up again as another one, which
// may be neither established nor liberal.
func (c *Composer) stillFit(t conntrack.Tuple) (conntrack.Conn, error) {
	conn, err := c.ct.Get(t)
	if err != nil {
		return conn, err
	}
	if why := c.Unfit(conn); why != "" {
		return conn, fmt.Errorf("adopting connection %v: %s", t, why.Text())
	}
	if conn.Orig.Proto == protoTCP {
		return conn, c.ct.UpdateTCP(conn, conntrack.TCPUpdate{})
	}
	return conn, nil
}

// Candidate is a connection that the programs have admitted: packets of Tuple enter at
// a port.
type Candidate struct {
	Tuple conntrack.Tuple
	Port  int
}

// question is a candidate about which conntrack is asked, and what came of it.
type question struct {
	number int // among the candidates
	at     *discover.Port
	payers payers
	placed *contable.Conentry // that awaits release, nil if there is none
	why    Refusal
}

// Candidates takes candidates, about which conntrack is asked together. It returns the
// numbers of those whose connections have got a Conentry.
func (c *Composer) Candidates(all []Candidate, now time.Time) (composed []int) {
	began := time.Now()
	var asked []question
	var tuples []conntrack.Tuple
	for i, k := range all {
		p := c.ports.Port(k.Port)
		if p == nil {
			continue
		}
		if entry := c.table.Lookup(k.Tuple); entry != nil {
			payers, why := c.join(entry, p, k.Tuple, now)
			c.conclude(question{at: p, payers: payers, why: why}, time.Since(began))
			continue
		}
		payers, why := c.admit(p, now)
		if why != "" {
			c.refuse(k.Port, why)
			continue
		}
		asked = append(asked, question{number: i, at: p, payers: payers})
		tuples = append(tuples, k.Tuple)
	}
	for i, answer := range c.ct.GetAll(tuples) {
		q, before, waiting := &asked[i], c.composed, len(c.unconfirmed)
		if entry := c.table.Lookup(tuples[i]); entry != nil {
			_, q.why = c.join(entry, q.at, tuples[i], now)
		} else {
			q.why = c.compose(q.at, tuples[i], answer, now)
		}
		if c.composed != before {
			composed = append(composed, q.number)
		}
		if len(c.unconfirmed) > waiting {
			q.placed = c.unconfirmed[waiting]
		}
	}
	refused := c.release()
	for _, q := range asked {
		if q.placed != nil {
			q.why = refused[q.placed]
		}
		c.conclude(q, time.Since(began)/time.Duration(len(asked)))
	}
	return composed
}

// conclude counts what became of a candidate, and the time that it took.
func (c *Composer) conclude(q question, took time.Duration) {
	if q.why != "" {
		c.refuse(q.at.Index, q.why)
	}
	q.payers.spend(took, q.why != "")
}

// admit returns who pays for the time that a container's candidate takes, or why it is not
// looked at.
func (c *Composer) admit(p *discover.Port, now time.Time) (payers, Refusal) {
	a := c.account(p.Index)
	if a.paused {
		return nil, Paused
	}
	return c.allow(a, now)
}

// compose places a Conentry for a connection of a container, of which conntrack has an
// answer, or returns why not.
func (c *Composer) compose(p *discover.Port, tuple conntrack.Tuple, answer conntrack.Answer, now time.Time) Refusal {
	conn, err := answer.Conn, answer.Err
	if errors.Is(err, conntrack.ErrNotFound) {
		waited := c.waits(p, tuple)
		if why, both := c.pair(p, tuple, now); both {
			return why
		}
		bridged := c.bridged(p, tuple)
		switch {
		case c.untracked(p, tuple):
			return c.composeUntracked(subject{port: p.Index, initiator: true, untracked: true}, tuple, now)
		case bridged && waited: // the other end is no container, or it would have been announced
			return c.composeUntracked(subject{port: p.Index, initiator: true, untracked: true, bridged: true}, tuple, now)
		case bridged:
			return Untracked
		}
		return c.discard(p, tuple, now)
	}
	if err != nil {
		return ConntrackError
	}
	why := c.Unfit(conn)
	if why != "" && why != Offloaded { // which a rule of the flowtable does
		return why
	}
	if c.keepByRule(subject{port: p.Index, initiator: tuple == conn.Orig}, conn) {
		return PerPacketRule
	}
	if why != "" {
		return why
	}
	e, err := c.table.Compose(c.end(p, tuple.Src.Addr()), tuple, conn, now)
	if err == nil {
		c.composed++
		c.unconfirmed = append(c.unconfirmed, e)
		c.placed(e)
	}
	return tableRefusal(err)
}

// placed takes up a Conentry that is new in the table.
func (c *Composer) placed(e *contable.Conentry) {
	c.leases.forget(e)
	conn := c.table.Conn(e)
	c.recheck.add(e, conn.ID)
	c.index.add(e, conn)
}

// release gives the Conentries that have just been placed their leases, without which no
// packet of them goes express. Before that, conntrack is made to accept TCP's packets
// whatever their sequence numbers: those that it does not see must not make the others
// INVALID. Only these connections, both directions; never the sysctl. A daemon that is
// killed before leaves Conentries that do nothing. It returns those that conntrack refuses,
// and why.
func (c *Composer) release() map[*contable.Conentry]Refusal {
	refused := make(map[*contable.Conentry]Refusal)
	all := slices.DeleteFunc(c.unconfirmed, (*contable.Conentry).Gone)
	for i, answer := range c.ct.MakeLiberal(c.tuplesOf(all)) {
		e, fits := all[i], c.confirm(all[i], answer)
		if fits && (answer.Conn.Orig.Proto != protoTCP || answer.Conn.Liberal()) {
			c.decideLease(e, answer.Conn)
			continue
		}
		c.table.Retire(e)
		switch {
		case errors.Is(answer.Err, conntrack.ErrNotFound):
			refused[e] = Untracked
		case fits || answer.Err != nil:
			refused[e] = ConntrackError
		}
	}
	c.unconfirmed = c.unconfirmed[:0]
	return refused
}

// confirmAll asks conntrack again about Conentries. One whose connection conntrack judges by
// sequence numbers again has another entry, which took the old one's place.
func (c *Composer) confirmAll(all []*contable.Conentry) {
	tuples := c.tuplesOf(all)
	for i, answer := range c.ct.GetAll(tuples) {
		e := all[i]
		judged := tuples[i].Proto == protoTCP && !e.Untracked && !answer.Conn.Liberal()
		if judged || !c.confirm(e, answer) {
			c.table.Retire(e)
		}
	}
}

func (c *Composer) tuplesOf(all []*contable.Conentry) []conntrack.Tuple {
	tuples := make([]conntrack.Tuple, len(all))
	for i, e := range all {
		tuples[i] = c.table.Orig(e)
	}
	return tuples
}

// confirm takes what conntrack has of a connection now, and reports whether its Conentry
// may stay. The end of a connection is announced only if it has a Conentry, and may have
// come just before; a connection that conntrack did not see may be tracked by now.
func (c *Composer) confirm(e *contable.Conentry, answer conntrack.Answer) bool {
	conn := answer.Conn
	if e.Untracked {
		return errors.Is(answer.Err, conntrack.ErrNotFound)
	}
	if answer.Err != nil || !c.table.Same(e, conn) || c.Unfit(conn) != "" {
		return false
	}
	if conn.Mark != e.Mark {
		e.Mark = conn.Mark
		return !c.keepByRule(subjectOf(e), c.table.Conn(e)) && c.table.Withdraw(e)
	}
	return true
}

// withdraw has a Conentry confirmed by a regular packet.
func (c *Composer) withdraw(e *contable.Conentry) {
	if !c.table.Withdraw(e) {
		c.table.Retire(e)
	}
}

// Composed returns how many Conentries were composed since the start.
func (c *Composer) Composed() uint64 { return c.composed }
