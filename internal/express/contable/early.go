package contable

import (
	"sync/atomic"
	"time"

	"github.com/scon-project/scon/internal/express/conntrack"
	"github.com/scon-project/scon/internal/express/datapath"
)

// Early Conentries are composed by a program, of a pair of slots that the table has set aside
// for the container (bpf/early.bpf.c). The table finds them when it looks: most have ended by
// then. Those that last are taken up as Conentries like others.

// How many pairs are set aside for a container at least, and until when more are after it
// needed them.
const (
	fewestSpares = 8
	sparesRest   = 10 * time.Second
)

// An early Conentry is due to be taken up from lastsAge on, and to end if for halfAge only one
// of its ends has sent its last data.
const (
	lastsAge = time.Second
	halfAge  = 100 * time.Millisecond
)

// earlyAtOnce bounds how many early Conentries DueEarly returns: some milliseconds.
const earlyAtOnce = 512

// earlyPackets is after how many packets of one direction an early Conentry is due: it
// does not report the progress of its sequence numbers.
const earlyPackets = 4096

// pair are the slots of what a container sends and receives. They stay a pair until they are
// a Conentry's, or free.
type pair struct{ sent, received uint32 }

func (p pair) slots() [2]uint32 { return [2]uint32{p.sent, p.received} }

// early are the pairs that are set aside, or in use.
type early struct {
	ports   map[int]*earlyPort
	closing []closingPair // until no program can be using them
	late    []Early       // that EndEarly could not end
	pairs   int
}

// earlyPort is what is set aside for one container.
type earlyPort struct {
	port   int
	ring   *datapath.Spares
	bridge int // by which IP sees its packets come
	lease  time.Duration
	taken  uint32    // number of the first one in the ring that was not found taken
	wanted int       // in the ring
	short  time.Time // when it had less than half of that
	pairs  int
	open   []Early // in the order of their times
	ready  []pair  // that can be set aside again
}

type closingPair struct {
	pair
	of    *earlyPort
	until uint64 // that grace period is over
}

// EarlyState is what conntrack may not know of an early Conentry's connection.
type EarlyState int

// States of early Conentries.
const (
	EarlyOpen      EarlyState = iota
	EarlyHalfEnded            // a FIN of one direction went express
	EarlyEnded                // FINs of both have passed, one at least express
	EarlyClosed               // conntrack has seen how it ended
)

// Early is an early Conentry.
type Early struct {
	pair
	State EarlyState // as DueEarly found it
	of    *earlyPort
	since time.Time // when it was found
	half  time.Time // when it was found that one end has sent its last data
	Tries int       // how often CloseUntold was called
}

// HasFINs reports whether a FIN went express of which conntrack has to be told.
func (e Early) HasFINs() bool { return e.State == EarlyHalfEnded || e.State == EarlyEnded }

// OpenEarly sets slots aside for the container at a port, whose ring is given. IP sees its
// packets come by bridge.
func (t *Table) OpenEarly(port, bridge int, ring *datapath.Spares, lease time.Duration) {
	if t.early.ports[port] != nil {
		return
	}
	t.early.ports[port] = &earlyPort{port: port, ring: ring, bridge: bridge, lease: lease, taken: ring.Taken, wanted: fewestSpares}
}

// HasEarly reports whether slots are set aside for the container at a port, by whose packets
// IP sees them come.
func (t *Table) HasEarly(port int) (bridge int, has bool) {
	if p := t.early.ports[port]; p != nil {
		return p.bridge, true
	}
	return 0, false
}

// EarlyPorts calls fn with each port that OpenEarly was called for; fn may close it.
func (t *Table) EarlyPorts(fn func(port int)) {
	for port := range t.early.ports {
		fn(port)
	}
}

// CloseEarly takes back what is set aside for a container, and returns its early Conentries:
// EndEarly is due of all.
func (t *Table) CloseEarly(port int, now time.Time) []Early {
	p := t.early.ports[port]
	if p == nil {
		return nil
	}
	// What is left no program can take any more.
	given := atomic.LoadUint32(&p.ring.Given)
	taken := atomic.LoadUint32(&p.ring.Taken)
	for !atomic.CompareAndSwapUint32(&p.ring.Taken, taken, given) {
		taken = atomic.LoadUint32(&p.ring.Taken)
	}
	t.find(p, taken, now)
	for ; p.taken != given; p.taken++ {
		sent := p.ring.Slots[p.taken%uint32(datapath.SparesOfPort)]
		p.ready = append(p.ready, pair{sent, t.half(sent).Twin})
	}
	for _, x := range p.ready {
		t.freePair(x, p)
	}
	delete(t.early.ports, port)
	for i := range p.open {
		p.open[i].State = t.earlyState(p.open[i])
	}
	return p.open
}

// find takes up the pairs that programs have taken, those before a number in the ring.
func (t *Table) find(p *earlyPort, taken uint32, now time.Time) {
	for ; p.taken != taken; p.taken++ {
		sent := p.ring.Slots[p.taken%uint32(datapath.SparesOfPort)]
		p.open = append(p.open, Early{pair: pair{sent, t.half(sent).Twin}, of: p, since: now})
	}
}

// DueEarly returns early Conentries of which something is to be done, EndEarly or TakeUp,
// and whether there are any at all.
func (t *Table) DueEarly(now time.Time) (due []Early, any bool) {
	due, t.early.late = t.early.late, nil
	for _, p := range t.early.ports {
		t.find(p, atomic.LoadUint32(&p.ring.Taken), now)
		any = any || len(p.open) > 0
		kept := p.open[:0]
		for _, e := range p.open {
			if len(due) < earlyAtOnce && t.isDue(&e, now) {
				due = append(due, e)
			} else {
				kept = append(kept, e)
			}
		}
		p.open = kept
	}
	for i := range due {
		due[i].State = t.earlyState(due[i])
	}
	return due, any
}

func (t *Table) isDue(e *Early, now time.Time) bool {
	out, in := t.half(e.sent), t.half(e.received)
	if atomic.LoadUint32(&out.Locked) != 0 && out.State == datapath.SlotClosed {
		return false // a program has taken it, and is filling it
	}
	switch t.earlyState(*e) {
	case EarlyOpen:
		return now.Sub(e.since) >= lastsAge || atomic.LoadUint64(&out.Packets) > earlyPackets || atomic.LoadUint64(&in.Packets) > earlyPackets
	case EarlyHalfEnded:
		if e.half.IsZero() {
			e.half = now
		}
		return now.Sub(e.half) >= halfAge
	}
	return true
}

// earlyState returns what has become of an early Conentry.
func (t *Table) earlyState(e Early) EarlyState {
	open := t.half(e.sent).State == datapath.SlotOpen && t.half(e.received).State == datapath.SlotOpen
	switch fins := t.fins(e.pair); {
	case fins == 0 && open:
		return EarlyOpen
	case fins == 0:
		return EarlyClosed
	case fins == 1 && open:
		return EarlyHalfEnded
	}
	return EarlyEnded
}

// EarlyTuple returns the tuple of what the container of an early Conentry sends.
func (t *Table) EarlyTuple(e Early) conntrack.Tuple {
	tuple, _ := t.tupleAt(e.sent)
	return tuple
}

// EarlyAt returns the tuple of one direction of an early Conentry that has a slot.
func (t *Table) EarlyAt(slot uint32) (tuple conntrack.Tuple, is bool) {
	if !t.has(slot) {
		return tuple, false
	}
	sent, twin := slot, t.half(slot).Twin
	if _, is = t.live.pairs[sent]; !is {
		_, is = t.live.pairs[twin]
	}
	tuple, _ = t.tupleAt(slot)
	return tuple, is && tuple.Src.Port() != 0
}

// Port returns the ifindex of the container's port.
func (e Early) Port() int { return e.of.port }

// EndEarly has the packets of an early Conentry go regular. If a FIN went express since
// DueEarly has returned it, that does so once more.
func (t *Table) EndEarly(e Early) {
	fins := 0
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	for _, slot := range e.slots() {
		t.close(slot)
		if atomic.SwapUint32(reportAfter(t.half(slot)), 0)&datapath.EarlyFIN != 0 {
			fins++
		}
	}
	if e.State != EarlyEnded && (fins == 2 || fins == 1 && e.State != EarlyHalfEnded) {
		atomic.StoreUint32(reportAfter(t.half(e.sent)), datapath.EarlyFIN)
		t.PutOff(e)
		return
	}
	t.hide(e.sent)
	t.hide(e.received)
	t.early.closing = append(t.early.closing, closingPair{pair: e.pair, of: e.of, until: t.opts.Grace.Next()})
}

// CloseUntold has the packets of an early Conentry go regular, of whose FINs conntrack could not
// be told. DueEarly returns it once more.
func (t *Table) CloseUntold(e Early) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	for _, slot := range e.slots() {
		t.close(slot)
	}
	e.Tries++
	t.PutOff(e)
}

// fins counts the directions of a pair whose FIN went express.
func (t *Table) fins(x pair) (n uint32) {
	for _, slot := range x.slots() {
		n += atomic.LoadUint32(reportAfter(t.half(slot))) & datapath.EarlyFIN / datapath.EarlyFIN
	}
	return n
}

// PutOff has DueEarly return an early Conentry once more.
func (t *Table) PutOff(e Early) { t.early.late = append(t.early.late, e) }

// TakeUp makes an early Conentry one like others. Its packets go express meanwhile. It fails
// if the connection is not conn: EndEarly is due then; or if it ends (ErrEnding): PutOff is.
func (t *Table) TakeUp(e Early, conn conntrack.Conn, now time.Time) (*Conentry, error) {
	tuple := t.EarlyTuple(e)
	wire, _ := t.tupleAt(e.received)
	initiator := tuple == conn.Orig
	if initiator && wire != conn.Reply || !initiator && (tuple != conn.Reply || wire != conn.Orig) {
		return nil, ErrOther
	}
	if t.isKnown(conn.Orig, conn.Reply) {
		return nil, ErrExists
	}
	if err := t.roomBeside(e.Port(), 1); err != nil {
		return nil, err
	}
	for _, slot := range e.slots() {
		if !atomic.CompareAndSwapUint32(reportAfter(t.half(slot)), datapath.Early, reportFirst) {
			return nil, ErrEnding
		}
	}
	c := t.entries.take()
	if c == nil {
		return nil, ErrFull
	}
	c.port, c.outbound, c.inbound, c.initiator = int32(e.Port()), e.sent, e.received, initiator
	c.id, c.Status, c.Mark, c.composed = conn.ID, conn.Status, conn.Mark, t.since(now)
	c.lease = millisOf(time.Duration(t.half(e.sent).Lease) * t.opts.Tick)
	t.insert(c)
	c.activity.begin(millisOf(c.composed), 0)
	t.removePair(e.pair, e.of)
	return c, nil
}

// reportFirst is TCP_REPORT_FIRST of bpf/lib/tcp.h.
const reportFirst = 1 << 16

// reportAfter is bpf/lib/maps.h's half.proto.report_after, which is in a union.
func reportAfter(h *datapath.Half) *uint32 { return &h.Proto.NoReply }

// RefillEarly sets slots aside in place of those that were taken, and reports whether there were
// enough for each container.
func (t *Table) RefillEarly(now time.Time) (enough bool) {
	t.recycle(now)
	enough = true
	for _, p := range t.early.ports {
		t.find(p, atomic.LoadUint32(&p.ring.Taken), now)
		left := int(p.ring.Given - atomic.LoadUint32(&p.ring.Taken))
		switch {
		case left <= p.wanted/2:
			p.wanted, p.short = min(2*p.wanted, datapath.SparesOfPort), now
		case now.Sub(p.short) > sparesRest:
			p.wanted, p.short = max(p.wanted/2, fewestSpares), now
		}
		// What was taken since the ring was looked at still has its place there.
		for ; left < p.wanted && p.ring.Given-p.taken < uint32(datapath.SparesOfPort) && t.setAside(p); left++ {
		}
		atomic.StoreUint32(&p.ring.Half, p.ring.Given-uint32(left/2))
		enough = enough && left >= p.wanted
	}
	return enough
}

// setAside makes a pair of free slots one that programs may take.
func (t *Table) setAside(p *earlyPort) bool {
	if last := len(p.ready) - 1; last >= 0 && t.hasShare(p, 0) {
		t.give(p.ready[last], p)
		p.ready = p.ready[:last]
		return true
	}
	if t.free.n < max(t.opts.PageSlots/4, 2) || !t.hasShare(p, 1) {
		return false
	}
	sent, _ := t.free.take()
	received, _ := t.free.take()
	if sent == 0 { // which is none's, for the programs
		sent, received = received, sent
	}
	x := pair{sent, received}
	t.addPair(x)
	p.pairs++
	t.early.pairs++
	t.give(x, p)
	return true
}

// hasShare reports whether a container may have so many pairs more: half of its share, and of
// the table, is for Conentries that last.
func (t *Table) hasShare(p *earlyPort, more int) bool {
	return 2*(p.pairs+more) <= t.opts.PerContainer && t.perPort[p.port]+p.pairs+more <= t.opts.PerContainer &&
		2*(t.early.pairs+more) <= t.opts.Connections && t.Len()+t.early.pairs+more <= t.opts.Connections
}

// give puts a pair into a port's ring.
func (t *Table) give(x pair, p *earlyPort) {
	t.live.mu.Lock() // withdrawEarly looks at it
	defer t.live.mu.Unlock()
	for i, slot := range x.slots() {
		*t.half(slot) = datapath.Half{State: datapath.SlotClosed, Locked: 1, Twin: x.slots()[1-i], Lease: t.ticks(p.lease)}
	}
	t.half(x.sent).InBridge = uint32(p.bridge)
	given := p.ring.Given
	p.ring.Slots[given%uint32(datapath.SparesOfPort)] = x.sent
	atomic.StoreUint32(&p.ring.Given, given+1)
}

// recycle frees pairs that no program can be using any more.
func (t *Table) recycle(now time.Time) {
	if len(t.early.closing) == 0 {
		return
	}
	for over := t.opts.Grace.Over(); len(t.early.closing) > 0 && t.early.closing[0].until <= over; {
		x := t.early.closing[0]
		t.early.closing = t.early.closing[1:]
		// A program was filling it, or has let a FIN pass meanwhile.
		if t.half(x.sent).State == datapath.SlotOpen || t.fins(x.pair) > 0 {
			t.early.late = append(t.early.late, Early{pair: x.pair, of: x.of, since: now})
			continue
		}
		p := x.of
		t.countEarly(x)
		if p != t.early.ports[p.port] || len(p.ready) >= p.wanted || !t.hasShare(p, 0) {
			t.freePair(x.pair, p)
		} else {
			p.ready = append(p.ready, x.pair)
		}
	}
}

// freePair frees the slots of a pair of a container.
func (t *Table) freePair(x pair, p *earlyPort) {
	t.removePair(x, p)
	t.empty(x.sent)
	t.empty(x.received)
}

// countEarly adds the packets of an early Conentry that has ended to the totals.
func (t *Table) countEarly(x closingPair) {
	sum := t.express(&Conentry{outbound: x.sent, inbound: x.received})
	port := x.of.port
	if t.live.ports[port] == nil {
		port = 0 // another device may get the ifindex
	}
	t.sum = t.sum.plus(sum)
	t.sums[port] = t.sums[port].plus(sum)
}

// addPair makes MakeStale know a pair, before a program can take it.
func (t *Table) addPair(x pair) {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	t.live.pairs[x.sent] = x.received
}

// removePair is the end of addPair.
func (t *Table) removePair(x pair, p *earlyPort) {
	t.live.mu.Lock()
	delete(t.live.pairs, x.sent)
	t.live.mu.Unlock()
	t.early.pairs--
	p.pairs--
}

// WithdrawEarly withdraws the decisions of all early Conentries: regular packets that enter
// later have to confirm them. It reports false if a program keeps recording into one.
func (t *Table) WithdrawEarly() bool {
	t.live.mu.Lock()
	defer t.live.mu.Unlock()
	return t.withdrawEarly()
}

// withdrawEarly does that with live.mu locked. What is set aside, or being filled, has none.
func (t *Table) withdrawEarly() bool {
	atomic.AddUint32(&t.settings.Withdrawn, 1)
	done := true
	for sent, received := range t.live.pairs {
		if t.half(sent).State != datapath.SlotOpen {
			continue
		}
		done = t.withdraw(sent, nil) && done
		done = t.withdraw(received, nil) && done
	}
	return done
}

// Changes are how often decisions were withdrawn: of all, and of those that a change concerned.
type Changes struct{ generation, withdrawn uint32 }

// Changes returns those until now.
func (t *Table) Changes() Changes {
	return Changes{atomic.LoadUint32(&t.settings.Generation), atomic.LoadUint32(&t.settings.Withdrawn)}
}

// SetWide says that as of those changes packets of discover.Wide bytes pass the ports of early
// Conentries, and all uplinks.
func (t *Table) SetWide(c Changes) {
	atomic.StoreUint32(&t.settings.WideGeneration, c.generation)
	atomic.StoreUint32(&t.settings.WideWithdrawn, c.withdrawn)
}

// LeftEarly returns the early Conentries that an earlier daemon has left, before Adopt. Those
// that are not EarlyOpen Adopt removes; the others become Conentries like others.
func (t *Table) LeftEarly() (left []Early) {
	t.eachSlot(func(sent uint32, h *datapath.Half) {
		port := int(h.Key.Side >> datapath.SideShift)
		if h.Key.Side&datapath.SideUDP != 0 || port == 0 || *reportAfter(h)&datapath.Early == 0 ||
			!t.has(h.Twin) || t.half(h.Twin).Twin != sent || *reportAfter(t.half(h.Twin))&datapath.Early == 0 {
			return
		}
		e := Early{pair: pair{sent, h.Twin}}
		e.State = t.earlyState(e)
		left = append(left, e)
		for _, slot := range e.slots() {
			if e.State != EarlyOpen || !atomic.CompareAndSwapUint32(reportAfter(t.half(slot)), datapath.Early, reportFirst) {
				t.half(e.sent).State, t.half(e.received).State = datapath.SlotClosed, datapath.SlotClosed
			}
		}
	})
	return left
}
